"""One agent's access to the gateway: limits, retries, usage and the record of each request.

If a program abandons a request, the request still completes, because it is billed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from cooperbench.agents import llm
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, CooperBenchError, InfraError, Interrupted
from cooperbench.gateway.api_formats import ANTHROPIC, CHAT, JsonObject, Refused
from cooperbench.gateway.conversations import Calls, Conversations, Exchange
from cooperbench.gateway.request_filter import allow_request
from cooperbench.gateway.streams import join_events
from cooperbench.gateway.upstream import Upstream
from cooperbench.models import Usage
from cooperbench.text import printable

SendEvent = Callable[[JsonObject], None]
_PING_SECONDS = 15.0
_MAX_REFUSALS = 3
"""Consecutive refusals that a program cannot do anything about, until its agent is ended."""
MAX_TOKEN_COUNTS = 1_000
"""Number of times that an agent may have its prompt counted."""
_MAX_REMOVAL_NOTES = 20
_SIMPLE_REQUEST: JsonObject = {
    "messages": [{"role": "user", "content": "Reply with: OK"}],
    "max_tokens": 1_000,
}
"""Request that shows whether the model answers at all."""
_FIRST_EVENTS = ("message_start", "response.created", "response.in_progress")
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")
_HELD_EVENTS = (*_FIRST_EVENTS, *_LAST_EVENTS)
"""Events of a stream that are not passed on alone."""


class Request(NamedTuple):
    """A program's request for a model."""

    api_format: str
    body: JsonObject
    headers: Mapping[str, str]
    stream: bool


class _Reply(NamedTuple):
    """A model's reply."""

    body: JsonObject
    """The whole reply, even if it was streamed."""
    unsent: list[JsonObject]
    """Events that the program gets after the reply is on record."""
    seconds: float
    """Duration of the successful attempt."""
    is_replayed: bool = False


class _Events(NamedTuple):
    """The events of a reply, or the whole reply as the only one."""

    events: AsyncIterator[JsonObject]
    are_replayed: bool
    files: Mapping[str, str] | None = None
    """The files that the agent had changed before, if they are recorded."""


class Access:
    """One agent's access. Its token is valid until the agent ends; afterwards it gets 401."""

    def __init__(
        self,
        token: str,
        session: AgentSession,
        upstream: Upstream,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.token = token
        self.ended = threading.Event()
        """Set when the agent's program must be ended: a limit, a stopped run, a permanent error."""
        self.session = session
        self.lock = threading.RLock()
        """Held around everything that changes the session."""
        self.closed = False
        self.upstream = upstream
        self.calls = calls
        self.waiting = 0
        """Number of requests without a reply."""
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake = threading.Event()
        """Set when a framework's reply is there, or the agent has ended."""
        self._replies = 0
        self._end: CooperBenchError | None = None
        self._failure: AgentFailure | None = None
        self._refusals = 0
        self._token_counts = 0
        self._counting = asyncio.Lock()
        self._removed: set[str] = set()
        """What was removed from requests and is in the log."""

    def outcome(self) -> CooperBenchError | None:
        """Return the error that the agent ends with.

        It is the reason why `ended` is set, or else the failure of the agent's last request.
        """
        return self._end or self._failure

    def end(self, error: CooperBenchError) -> None:
        """End the agent. Only the first reason is kept."""
        if not self.ended.is_set():
            self._end = error
            if not isinstance(error, AgentFailure):
                self.session.remember(error)
            self.ended.set()
            self._wake.set()

    def check_running(self) -> None:
        """End the agent if its time is up or the run is being stopped."""
        try:
            self.session.check_running()
        except (AgentFailure, InfraError, Interrupted) as error:
            self.end(error)

    def ask(self, body: JsonObject) -> JsonObject:
        """Return a chat completion, for a framework in this process.

        Raises:
            CooperBenchError: The agent has to end.
        """
        self._wake.clear()
        request = Request(CHAT, body, headers={}, stream=False)
        future = asyncio.run_coroutine_threadsafe(self._answer(request, lambda _: None), self._loop)
        future.add_done_callback(lambda _: self._wake.set())
        if not self.ended.is_set():
            self._wake.wait()
        try:
            return future.result(0)[0]
        except Refused as refusal:
            raise self.outcome() or InfraError(str(refusal)) from refusal
        except TimeoutError:
            raise self.outcome() or Interrupted("stopped") from None
        except CancelledError:
            raise self.outcome() or InfraError("the agent has ended") from None

    async def cancel(self) -> None:
        """Cancel the agent's requests and close its connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstream.http.close()

    async def count_tokens(self, body: JsonObject) -> int:
        """Return the number of tokens of a prompt in Anthropic's API format.

        The limits of model calls apply. Counts are free of charge at providers, so that they are
        not part of the usage. They have a limit of their own, and the log has their number.
        """
        if self._end:
            raise Refused(400, f"the agent has ended: {self._end}")
        try:
            await self._use_session(self.session.check_spent)
        except CooperBenchError as error:
            self.end(error)
            raise Refused(400, str(error)) from error
        if self._token_counts >= MAX_TOKEN_COUNTS:
            raise Refused(400, f"an agent may count tokens {MAX_TOKEN_COUNTS} times")
        self._token_counts += 1
        try:
            allowed = await self._allow(ANTHROPIC, body)
            async with self._counting:
                return await self.upstream.count_tokens(allowed)
        except Refused:
            raise
        except Exception as error:
            raise Refused(400, f"the tokens cannot be counted: {error}") from error

    def finish(self) -> None:
        """Invalidate the token and end the record."""
        with self.lock:
            if self._token_counts:
                self.session.note(f"the program counted tokens {self._token_counts} times")
            self.closed = True

    async def serve(self, request: Request) -> AsyncIterator[JsonObject | None]:
        """Yield the events of a stream, or the whole reply as the only one.

        None, which may come before the first event, is a ping.
        """
        events: asyncio.Queue[JsonObject | None] = asyncio.Queue()

        def on_done(task: asyncio.Task[list[JsonObject]]) -> None:
            events.put_nowait(None)
            if not task.cancelled():
                # Retrieve the exception: otherwise asyncio logs it if the program has gone away.
                task.exception()

        task = asyncio.create_task(self._answer(request, events.put_nowait))
        task.add_done_callback(on_done)
        has_begun = not request.stream
        while True:
            timeout = None if has_begun else _PING_SECONDS
            try:
                event = await asyncio.wait_for(events.get(), timeout)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            has_begun = True
            yield event
        if task.cancelled():
            raise Refused(503, "the agent has ended")
        for event in task.result():
            yield event

    async def _answer(self, request: Request, send: SendEvent) -> list[JsonObject]:
        """Send events as they come, and return those that follow after the reply is on record."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._answer_and_record(request, send)
        except CooperBenchError as error:
            self.end(error)
            raise Refused(503 if isinstance(error, InfraError) else 400, str(error)) from error
        except Refused:
            raise
        except Exception as error:
            # Neither the provider nor the agent is the reason.
            self.end(InfraError(f"the gateway failed: {type(error).__name__}: {error}"))
            raise Refused(503, "the gateway failed") from error
        finally:
            self._tasks.discard(task)

    async def _answer_and_record(self, request: Request, send: SendEvent) -> list[JsonObject]:
        if self._end:
            raise Refused(400, f"the agent has ended: {self._end}")
        exchange = await self._begin_exchange(request)
        self.waiting += 1
        try:
            reply = await self._ask_with_retries(request, exchange, send)
        finally:
            self.waiting -= 1
        usage = self._usage(request, reply)
        await self._use_session(self.calls.record_reply, exchange, reply.body, usage)
        self._replies += 1
        if exchange.conversation.is_main:
            self._failure = None
            self._refusals = 0
        return reply.unsent

    def _usage(self, request: Request, reply: _Reply) -> Usage:
        records = self.session.exchanges
        if reply.is_replayed and records and not records.counts_replayed_usage:
            return Usage()
        return self.upstream.usage(request.api_format, reply.body, reply.seconds)

    async def _begin_exchange(self, request: Request) -> Exchange:
        # A program's history may need its sandbox: messages may be waiting there.
        may_wait = isinstance(self.calls, Conversations)
        try:
            body = await self._allow(request.api_format, request.body)
            if self.session.exchanges:
                await asyncio.to_thread(
                    self.session.exchanges.await_earlier, request.api_format, body
                )
            exchange: Exchange = await self._use_session(
                self.calls.begin_exchange, request.api_format, body, may_wait=may_wait
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            problem = f"the request cannot be read: {type(error).__name__}: {error}"
            raise Refused(400, problem) from error
        return exchange

    async def _allow(self, api_format: str, body: JsonObject) -> JsonObject:
        """Return what may be forwarded of a request. The log names what is removed, once each."""
        allowed = allow_request(api_format, body)
        for path, reason in allowed.removed.items():
            if path not in self._removed and len(self._removed) < _MAX_REMOVAL_NOTES:
                self._removed.add(path)
                note = f"the gateway removed {printable(path)} from requests: {reason}"
                await self._use_session(self.session.note, note)
        return allowed.body

    async def _ask_with_retries(
        self, request: Request, exchange: Exchange, send: SendEvent
    ) -> _Reply:
        is_first_call = self._replies == 0 and exchange.conversation.is_main
        attempts = llm.Attempts(self.upstream.model, is_first_call)
        is_concurrent = self.waiting > 1
        while True:
            await self._use_session(self.session.check_limits, concurrent=is_concurrent)
            pause = llm.shared_pause(self.upstream.model)
            if pause:
                await asyncio.sleep(pause)
                continue
            try:
                return await self._attempt(request, exchange, send)
            except (CooperBenchError, Refused):
                raise
            except Exception as error:
                is_concurrent = False
                cause = _cause(error)
                self.session.model_error = llm.error_text(cause)
                try:
                    pause = attempts.failed(cause, self.session.note)
                except AgentFailure as failure:
                    self._note_failure(failure, exchange)
                    raise Refused(400, str(failure), failure.status) from error
                except InfraError:
                    # Nothing but the program's own request has come before the first reply.
                    if is_first_call or not await self._answers_other_requests():
                        raise
                    return await self._attempt_last_time(request, exchange, send)
                await asyncio.sleep(pause)

    async def _answers_other_requests(self) -> bool:
        """Return whether the model replies to a simple request, after another one kept failing."""
        try:
            async for _ in self.upstream.ask(CHAT, _SIMPLE_REQUEST, {}, stream=False):
                pass
        except Exception as error:
            self.session.note(f"a simple request failed, too: {llm.error_text(_cause(error))}")
            return False
        self.session.note("the model replied to a simple request")
        return True

    async def _attempt_last_time(
        self, request: Request, exchange: Exchange, send: SendEvent
    ) -> _Reply:
        """Try a request that kept failing once more, now that the model replies to others.

        If it fails again, something in it is the reason. An agent could send such a request on
        purpose, so it is the agent's outcome and not an infrastructure error, which is not scored.
        """
        try:
            return await self._attempt(request, exchange, send)
        except (CooperBenchError, Refused):
            raise
        except Exception as error:
            text = llm.error_text(_cause(error))
            problem = f"the model answers other requests, but not this one: {text}"
            self._note_failure(AgentFailure(llm.REQUEST_REJECTED, problem), exchange)
            raise Refused(400, problem, llm.REQUEST_REJECTED) from error

    def _note_failure(self, failure: AgentFailure, exchange: Exchange) -> None:
        """Remember a refused request. The program may react to it, e.g. shorten its history."""
        self.session.model_answered()
        if not exchange.conversation.is_main:
            return
        self._failure = failure
        if failure.status != llm.CONTEXT_OVERFLOW:
            self._refusals += 1
        if self._refusals >= _MAX_REFUSALS:
            self.end(failure)

    async def _attempt(self, request: Request, exchange: Exchange, send: SendEvent) -> _Reply:
        api_format = request.api_format
        started = time.monotonic()
        events, are_replayed, files = await self._events(request, exchange)
        received: list[JsonObject] = []
        unsent: list[JsonObject] = []
        try:
            async for event in events:
                received.append(event)
                unsent.append(event)
                # A stream that breaks before it has any content is tried again.
                if request.stream and event.get("type") not in _HELD_EVENTS:
                    for ready in unsent:
                        send(ready)
                    unsent.clear()
            body = join_events(api_format, received) if request.stream else received[0]
        except Exception as error:
            has_sent_events = len(received) > len(unsent)
            if has_sent_events:
                self.session.note(f"model stream failed: {type(_cause(error)).__name__}")
                problem = "the model's reply broke off; send the request again"
                raise Refused(503, problem) from error
            raise
        records = self.session.exchanges
        if records:
            count = self.session.received
            await self._use_session(
                records.keep, api_format, exchange.sent, received, count, files, may_wait=True
            )
        return _Reply(body, unsent, time.monotonic() - started, are_replayed)

    async def _events(self, request: Request, exchange: Exchange) -> _Events:
        """Return the events of the recorded reply in a replay, else of the model's."""
        api_format = request.api_format
        records = self.session.exchanges
        body, files = exchange.body, None
        if records:
            # Without the lock: the turn may depend on another request of the same agent.
            await asyncio.to_thread(records.await_turn, api_format, exchange.sent)
            recorded = await self._use_session(
                records.find, api_format, exchange.sent, may_wait=True
            )
            files = await self._use_session(records.list_files, may_wait=True)
            if recorded:
                return _Events(_iterate(recorded), are_replayed=True, files=files)
            body = records.rewrite(body)
        events = self.upstream.ask(api_format, body, request.headers, stream=request.stream)
        return _Events(events, are_replayed=False, files=files)

    async def _use_session(
        self, function: Callable[..., Any], *args: Any, may_wait: bool = False, **kwargs: Any
    ) -> Any:
        """Call a function that uses the session, with the lock held.

        It runs in a thread if it may wait for the sandbox or if the lock is taken.
        """

        def call_locked() -> Any:
            with self.lock:
                if self.closed:
                    raise Interrupted("the agent has ended")
                return function(*args, **kwargs)

        if may_wait or not self.lock.acquire(blocking=False):
            return await asyncio.to_thread(call_locked)
        try:
            return call_locked()
        finally:
            self.lock.release()


async def _iterate(events: Sequence[JsonObject]) -> AsyncIterator[JsonObject]:
    for event in events:
        yield event


def _cause(error: Exception) -> Exception:
    """Return the error that has the HTTP status: LiteLLM wraps some errors into others."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, Exception) and llm.status_of(current) is not None:
            return current
        current = current.__cause__ or current.__context__
    return error
