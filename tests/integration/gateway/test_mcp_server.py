"""Messages as tools: the official client over HTTP, each agent known by its token."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from cooperbench.gateway.mcp_server import mcp_endpoint
from cooperbench.team.requests import Requests
from cooperbench.team.task_list import TaskList
from cooperbench.team.teammates import Teammates
from cooperbench.team.tools import make_tools
from tests.support.gateway.sessions import AtWork, agent_at_work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


class Server:
    """The endpoint on loopback, for agents with a token each."""

    def __init__(self) -> None:
        self.accesses: dict[str, Any] = {}
        endpoint = mcp_endpoint(self.accesses.get)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with endpoint.run():
                yield

        app = Starlette(routes=[Mount("/mcp", app=endpoint.handle_request)], lifespan=lifespan)
        config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        (socket,) = self._server.servers[0].sockets
        self.url = f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"

    def admit(self, token: str, at_work: AtWork) -> None:
        self.accesses[token] = SimpleNamespace(
            session=at_work.session, lock=threading.RLock(), ended=threading.Event()
        )

    def call(self, token: str, tool: str, **arguments: Any) -> str:
        async def ask() -> str:
            async with self._client(token) as client:
                result = await client.call_tool(tool, arguments)
                return "".join(getattr(block, "text", "") for block in result.content)

        return asyncio.run(ask())

    def tools(self, token: str) -> list[str]:
        async def ask() -> list[str]:
            async with self._client(token) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

        return asyncio.run(ask())

    @asynccontextmanager
    async def _client(self, token: str) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=120) as http,
            Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def at_work(tmp_path: Path, server: Server) -> Iterator[AtWork]:
    with agent_at_work(tmp_path) as at_work:
        server.admit("token-1", at_work)
        yield at_work


def test_a_message_goes_to_the_mailbox_with_its_true_sender(
    server: Server, at_work: AtWork
) -> None:
    at_work.session.steps = at_work.inbox.step = 4
    assert server.call("token-1", "send_message", to="agent2", text="hi\n") == "Message sent."
    (message,) = at_work.mailbox.messages()
    assert (message.sender, message.recipient, message.text) == ("agent1", "agent2", "hi\n")
    assert message.sender_step == 4


def test_all_are_written_to_at_once(server: Server, at_work: AtWork) -> None:
    server.call("token-1", "send_message", to="all", text="hello everybody")
    assert [message.recipient for message in at_work.mailbox.messages()] == ["agent2"]


@pytest.mark.parametrize(
    ("to", "text", "reason"),
    [("agent1", "to myself", "no teammate 'agent1'"), ("agent2", " \n", "the text is empty")],
)
def test_what_is_not_sent_is_said(
    server: Server, at_work: AtWork, to: str, text: str, reason: str
) -> None:
    assert server.call("token-1", "send_message", to=to, text=text) == f"Not sent: {reason}"
    assert not at_work.mailbox.messages()


def test_a_teammate_that_has_finished_is_named(server: Server, at_work: AtWork) -> None:
    at_work.mailbox.finish("agent2")
    assert "agent2 has finished" in server.call("token-1", "send_message", to="agent2", text="hi")


def test_waiting_returns_what_comes_and_it_is_not_shown_again(
    server: Server, at_work: AtWork
) -> None:
    timer = threading.Timer(0.3, lambda: at_work.arrives("done with app.txt"))
    timer.start()
    text = server.call("token-1", "wait_for_message", timeout=30)
    assert text == "Message from agent2:\n\ndone with app.txt"
    assert at_work.session.incoming() == []
    assert [entry["args"]["content"] for entry in at_work.entries("receive_message")] == [
        "done with app.txt"
    ]


def test_waiting_ends_with_its_time_and_with_the_agent(server: Server, at_work: AtWork) -> None:
    assert server.call("token-1", "wait_for_message", timeout=0.1) == "No message came."
    threading.Timer(0.2, server.accesses["token-1"].ended.set).start()
    started = time.monotonic()
    assert server.call("token-1", "wait_for_message", timeout=60) == "No message came."
    assert time.monotonic() - started < 20


def test_many_may_wait_while_others_send(server: Server, at_work: AtWork) -> None:
    """More than a pool of threads has by default: nobody waits for another's wait to end."""
    waiting = [
        threading.Thread(
            target=server.call, args=("token-1", "wait_for_message"), kwargs={"timeout": 60}
        )
        for _ in range(45)
    ]
    for thread in waiting:
        thread.start()
    assert server.call("token-1", "send_message", to="agent2", text="still here") == "Message sent."
    server.accesses["token-1"].ended.set()
    for thread in waiting:
        thread.join()


def test_without_a_valid_token_nothing_is_sent(server: Server, at_work: AtWork) -> None:
    assert "token is not valid" in server.call("token-2", "send_message", to="agent2", text="hi")
    assert not at_work.mailbox.messages()


def test_an_agent_of_a_team_has_its_tools_and_others_do_not(
    server: Server, at_work: AtWork
) -> None:
    agents = ("agent1", "agent2")
    team = Teammates(agents, lambda _: 1, lambda *_: None)
    tasks = TaskList(team)
    requests = Requests(team)
    assert server.tools("token-1") == ["send_message", "wait_for_message"]
    at_work.session.tools = make_tools("agent1", tasks, requests)
    assert server.tools("token-1") == ["send_message", "wait_for_message", *at_work.session.tools]
    made = server.call("token-1", "coop-task-create", title="it's mine", assign="agent2")
    assert made == "#1 [open] agent2: it's mine\n"
    assert "belongs to agent2" in server.call("token-1", "coop-task-claim", task_id=1)
    assert "validation error" in server.call(
        "token-1", "coop-task-update", task_id=1, state="finished"
    )

    def respond() -> None:
        while requests.respond("agent2", 1, "fine").code:
            time.sleep(0.05)  # it has not come yet

    threading.Thread(target=respond).start()
    asked = server.call(
        "token-1", "coop-request", agent="agent2", kind="review", body="all right?", wait=30
    )
    assert asked == "agent2 answered your request 1 (review):\nfine\n"
