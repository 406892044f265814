"""What one agent has of the gateway, and what a request means for it: limits, attempts, accounts, the record.

A request that its program no longer waits for is carried to its end all the same, since it is paid.
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
from cooperbench.gateway import api_formats
from cooperbench.gateway.api_formats import CHAT, Body, Refused
from cooperbench.gateway.conversations import Calls, Conversations, Exchange
from cooperbench.gateway.upstream import Upstream

Send = Callable[[Body], None]

_PING_SECONDS = 15.0
_MAX_REFUSALS = 3
"""In a row, for what a program cannot mend. It may go on asking until its own limit."""
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete")


class Request(NamedTuple):
    """Of a program."""

    api_format: str
    body: Body
    headers: Mapping[str, str]
    stream: bool


class Access:
    """Valid while the agent works; afterwards its token gets 401. When `ended` is set, its program has to be ended."""

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
        """Set when the agent has to end: a limit (the time limit too), a stopped run, a fault that stays."""
        self.session = session
        self.lock = threading.RLock()
        """Held around everything that changes the session."""
        self.closed = False
        self.upstream = upstream
        self.calls = calls
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake = threading.Event()
        """Set when what a framework waits for is there, or the agent has ended."""
        self.waiting = 0
        """Requests that the provider has not answered yet."""
        self._answered = 0
        self._end: CooperBenchError | None = None
        self._fault: AgentFailure | None = None
        self._refusals = 0

    def outcome(self) -> CooperBenchError | None:
        """To be raised: why `ended` is set; else the refusal that the agent's last request met."""
        return self._end or self._fault

    def end(self, error: CooperBenchError) -> None:
        """The first reason counts."""
        if not self.ended.is_set():
            self._end = error
            self.ended.set()
            self._wake.set()

    def check_running(self) -> None:
        try:
            self.session.check_running()
        except (AgentFailure, InfraError, Interrupted) as error:
            self.end(error)

    def ask(self, body: Body) -> Body:
        """A chat completion, for a framework in this process. What it raises is an error of ours."""
        self._wake.clear()
        answer = self._answer(Request(CHAT, body, {}, stream=False), lambda _: None)
        asked = asyncio.run_coroutine_threadsafe(answer, self._loop)
        asked.add_done_callback(lambda _: self._wake.set())
        if not self.ended.is_set():
            self._wake.wait()
        try:
            return asked.result(0)[0]
        except Refused as refusal:
            raise self.outcome() or InfraError(str(refusal)) from refusal
        except TimeoutError:
            raise self.outcome() or Interrupted("stopped") from None
        except CancelledError:
            raise self.outcome() or InfraError("the agent has ended") from None

    async def cancel(self) -> None:
        """What the agent still waits for; connections that are in use are closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstream.http.close()

    async def count_tokens(self, body: Body) -> int:
        """How many tokens a prompt of Anthropic's API format has."""
        try:
            return await self.upstream.count_tokens(body)
        except Exception as error:
            raise Refused(400, f"the tokens cannot be counted: {error}") from error

    async def serve(self, request: Request) -> AsyncIterator[Body | None]:
        """The events of a stream, or the whole answer as the only one. None, before the first event, is a ping."""
        events: asyncio.Queue[Body | None] = asyncio.Queue()

        def finish(done: asyncio.Task[list[Body]]) -> None:
            events.put_nowait(None)
            if not done.cancelled():
                done.exception()  # else asyncio reports it where nobody waits for the answer any more

        task = asyncio.create_task(self._answer(request, events.put_nowait))
        task.add_done_callback(finish)
        begun = not request.stream
        while True:
            try:
                event = await asyncio.wait_for(events.get(), None if begun else _PING_SECONDS)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            begun = True
            yield event
        if task.cancelled():
            raise Refused(503, "the agent has ended")
        for event in task.result():
            yield event

    async def _answer(self, request: Request, send: Send) -> list[Body]:
        """What tells the program that the answer is whole, after it is on record; all before is sent at once."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._end:
                raise Refused(400, f"the agent has ended: {self._end}")
            try:
                body = api_formats.without_provider_tools(request.api_format, request.body)
                wait = isinstance(self.calls, Conversations)
                exchange = await self._use_session(
                    self.calls.request, request.api_format, body, may_wait=wait
                )
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise Refused(
                    400, f"the request cannot be read: {type(error).__name__}: {error}"
                ) from error
            self.waiting += 1
            try:
                reply, last, seconds = await self._asked(request, exchange, send)
            finally:
                self.waiting -= 1
            usage = self.upstream.usage(request.api_format, reply, seconds)
            await self._use_session(self.calls.answered, exchange, reply, usage)
            self._answered += 1
            if not exchange.conversation.label:
                self._fault, self._refusals = None, 0
            return last
        except CooperBenchError as error:
            self.end(error)
            raise Refused(503 if isinstance(error, InfraError) else 400, str(error)) from error
        except Refused:
            raise
        except Exception as error:
            # Not the provider's doing, nor the agent's.
            self.end(InfraError(f"the gateway failed: {type(error).__name__}: {error}"))
            raise Refused(503, "the gateway failed") from error
        finally:
            self._tasks.discard(task)

    async def _asked(
        self, request: Request, exchange: Exchange, send: Send
    ) -> tuple[Body, list[Body], float]:
        """The answer, events of it that are still to be sent, and how long the last attempt took."""
        is_main = not exchange.conversation.label
        attempts = llm.Attempts(self.upstream.model, self._answered == 0 and is_main)
        concurrent = self.waiting > 1
        while True:
            await self._use_session(self.session.check_limits, concurrent=concurrent)
            if pause := llm.shared_pause(self.upstream.model):
                await asyncio.sleep(pause)
                continue
            started = time.monotonic()
            try:
                reply, last = await self._attempt(request, exchange, send)
            except (CooperBenchError, Refused):
                raise
            except Exception as error:
                concurrent = False
                self.session.model_error = llm.error_text(_cause(error))
                try:
                    pause = attempts.failed(_cause(error), self.session.note)
                except AgentFailure as fault:
                    # The program may be able to help itself, e.g. by a shorter history.
                    self.session.model_answered()
                    if is_main:
                        self._fault = fault
                        self._refusals += fault.status != llm.CONTEXT_OVERFLOW
                        if self._refusals >= _MAX_REFUSALS:
                            self.end(fault)
                    raise Refused(400, str(fault), fault.status) from error
                await asyncio.sleep(pause)
            else:
                return reply, last, time.monotonic() - started

    async def _attempt(
        self, request: Request, exchange: Exchange, send: Send
    ) -> tuple[Body, list[Body]]:
        api_format, records, stream = request.api_format, self.session.exchanges, request.stream
        recorded = records and await self._use_session(
            records.find, api_format, exchange.sent, may_wait=True
        )
        asked = self.upstream.ask(api_format, exchange.body, request.headers, stream=stream)
        seen: list[Body] = []
        last: list[Body] = []
        try:
            async for event in _each(recorded) if recorded else asked:
                seen.append(event)
                if stream and event.get("type") not in _LAST_EVENTS:
                    send(event)
                else:
                    last.append(event)
            reply = self.upstream.whole(api_format, seen) if stream else seen[0]
        except Exception as error:
            if len(seen) > len(last):
                self.session.note(f"model stream failed: {type(_cause(error)).__name__}")
                raise Refused(503, "the model's answer broke off; ask again") from error
            raise
        if records:
            received = self.session.received
            await self._use_session(
                records.keep, api_format, exchange.sent, seen, received, may_wait=True
            )
        return reply, last

    async def _use_session(
        self, work: Callable[..., Any], *args: Any, may_wait: bool = False, **kwargs: Any
    ) -> Any:
        """In a thread where it may have to wait: for the sandbox, or for whoever else uses the session."""

        def locked() -> Any:
            with self.lock:
                if self.closed:
                    raise Interrupted("the agent has ended")
                return work(*args, **kwargs)

        if may_wait or not self.lock.acquire(blocking=False):
            return await asyncio.to_thread(locked)
        try:
            return locked()
        finally:
            self.lock.release()


async def _each(events: Sequence[Body]) -> AsyncIterator[Body]:
    for event in events:
        yield event


def _cause(error: BaseException) -> Exception:
    """LiteLLM wraps some errors into ones that do not tell the status."""
    found: BaseException | None = error
    while found is not None and getattr(found, "status_code", None) is None:
        found = found.__cause__ or found.__context__
    chosen = error if found is None else found
    assert isinstance(chosen, Exception)
    return chosen
