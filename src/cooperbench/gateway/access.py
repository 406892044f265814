"""What one agent has of the gateway, and what a request means for it: limits, attempts, accounts, the record.

The session is used from threads, one at a time (`lock`). A request that its program no longer waits for is carried to
its end all the same, since it is paid.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from cooperbench.agents import llm
from cooperbench.agents.worker.client import CONTEXT_OVERFLOW
from cooperbench.errors import AgentFailure, CooperBenchError, InfraError, Interrupted
from cooperbench.gateway import dialects
from cooperbench.gateway.conversations import Conversations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.agents.session import Session
    from cooperbench.gateway.conversations import Exchange
    from cooperbench.gateway.dialects import Body
    from cooperbench.gateway.server import Gateway, Response
    from cooperbench.gateway.upstream import Upstream

_PING_SECONDS = 15.0


class Refused(Exception):
    """What the program is told instead of an answer."""

    def __init__(self, status: int, message: str, *, overflow: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.overflow = overflow


class Access:
    """Valid while the agent works; afterwards its token gets 401.

    with Gateway.shared().open(session, model) as access:
        start the program with access.token
        wait for the program and for access.ended, then end the program
        if error := access.outcome(): raise error
    """

    def __init__(self, gateway: Gateway, token: str, session: Session, upstream: Upstream) -> None:
        self.token = token
        self.ended = threading.Event()
        """Set when the agent has to end: a limit (the time limit too), a stopped run, a fault that stays."""
        self.session = session
        self.lock = threading.RLock()
        """Held around everything that changes the session."""
        self.upstream = upstream
        self.conversations = Conversations(session)
        self._gateway = gateway
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting = 0
        """Requests that the provider has not answered yet."""
        self._answered = 0
        self._closed = False
        self._end: CooperBenchError | None = None
        self._fault: AgentFailure | None = None

    def outcome(self) -> CooperBenchError | None:
        """Why `ended` is set; else the refusal that the agent's last request met, which it could not cope with.

        AgentFailure, UserError, InfraError or Interrupted, to be raised by the adapter.
        """
        return self._end or self._fault

    def end(self, error: CooperBenchError) -> None:
        """The first reason counts."""
        if not self.ended.is_set():
            self._end = error
            self.ended.set()

    def check_running(self) -> None:
        try:
            self.session.check_running()
        except (AgentFailure, InfraError, Interrupted) as error:
            self.end(error)

    def close(self) -> None:
        """What the agent still waits for is broken off."""
        with self.lock:
            self._closed = True
        self._gateway.close(self)
        self.conversations.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def cancel(self) -> None:
        """Everything that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, dialect: str, body: Body, headers: Mapping[str, str], response: Response) -> None:
        """One request of the program."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(dialect, body, headers, response)
        except CooperBenchError as error:
            self.end(error)
            raise Refused(503 if isinstance(error, InfraError) else 400, str(error)) from error
        except (Refused, asyncio.CancelledError):
            raise
        except Exception as error:
            # Not the provider's doing, nor the agent's.
            self.end(InfraError(f"the gateway failed: {type(error).__name__}: {error}"))
            raise Refused(503, "the gateway failed") from error
        finally:
            self._tasks.discard(task)

    async def _serve(self, dialect: str, body: Body, headers: Mapping[str, str], response: Response) -> None:
        if self._end:
            raise Refused(400, f"the agent has ended: {self._end}")
        try:
            body = dialects.without_provider_tools(dialect, body)
            exchange = await self._in_thread(self.conversations.request, dialect, body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused(400, f"the request cannot be read: {type(error).__name__}: {error}") from error
        pings = asyncio.create_task(self._ping(response)) if response.streamed else None
        self._waiting += 1
        try:
            reply, seconds = await self._asked(exchange, headers, response)
        finally:
            self._waiting -= 1
            if pings:
                pings.cancel()
        usage = self.upstream.usage(dialect, reply, seconds)
        # On record before the program can go on.
        await self._in_thread(self.conversations.answered, exchange, reply, usage)
        self._answered += 1
        if not exchange.conversation.label:
            self._fault = None
        await response.end()

    async def _asked(
        self, exchange: Exchange, headers: Mapping[str, str], response: Response
    ) -> tuple[Body, float]:
        """The answer, and how long the last attempt took."""
        is_main = not exchange.conversation.label
        attempts = llm.Attempts(self.upstream.model, self._answered == 0 and is_main)
        concurrent = self._waiting > 1
        while True:
            await self._in_thread(self.session.check_limits, concurrent=concurrent)
            if pause := llm.shared_pause(self.upstream.model):
                await asyncio.sleep(pause)
                continue
            started = time.monotonic()
            try:
                return await self._attempt(exchange, headers, response), time.monotonic() - started
            except CooperBenchError:
                raise
            except Exception as error:
                cause = _cause(error)
                if response.has_events:
                    self.session.note(f"model stream failed: {type(cause).__name__}")
                    raise Refused(503, "the model's answer broke off; ask again") from error
                concurrent = False
                try:
                    pause = attempts.failed(cause, self.session.note)
                except AgentFailure as fault:
                    # The program may be able to help itself, e.g. by a shorter history.
                    self.session.model_answered()
                    if is_main:
                        self._fault = fault
                    raise Refused(400, str(fault), overflow=fault.status == CONTEXT_OVERFLOW) from error
                await asyncio.sleep(pause)

    async def _attempt(self, exchange: Exchange, headers: Mapping[str, str], response: Response) -> Body:
        dialect, exchanges = exchange.dialect, self.session.exchanges
        events: list[Body] = await self._in_thread(exchanges.find, dialect, exchange.sent) or []
        for event in events:
            await response.add(event)
        if not events:
            async for event in self.upstream.ask(dialect, exchange.body, headers, stream=response.streamed):
                events.append(event)
                await response.add(event)
        reply = self.upstream.whole(dialect, events) if response.streamed else events[0]
        await self._in_thread(exchanges.keep, dialect, exchange.sent, events, self.session.received)
        return reply

    async def _ping(self, response: Response) -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            await response.ping()

    async def _in_thread(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def locked() -> Any:
            with self.lock:
                if self._closed:
                    raise Interrupted("the agent has ended")
                return work(*args, **kwargs)

        return await asyncio.to_thread(locked)


def _cause(error: BaseException) -> Exception:
    """LiteLLM wraps some errors into ones that do not tell the status."""
    found: BaseException | None = error
    while found is not None and getattr(found, "status_code", None) is None:
        found = found.__cause__ or found.__context__
    chosen = error if found is None else found
    assert isinstance(chosen, Exception)
    return chosen
