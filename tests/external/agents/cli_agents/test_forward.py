"""A port in a sandbox that leads to one port of the harness: whole bytes, both ways, many at once, after a kill too."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.cli_agents.forward import Forward
from cooperbench.sandbox.contract import PROGRAMS_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.sandbox.contract import Sandbox

pytestmark = pytest.mark.xdist_group("cli_agents")
ARCH = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
NODE = f"{PROGRAMS_DIR}/node_modules/node-linux-{ARCH}/bin/node"
MEGABYTES = 3
# Each of ten connections sends its bytes, ends its side, and then is sent them back with their checksum.
SENDERS = f"""
const net = require('net'), crypto = require('crypto');
for (let number = 0; number < 10; number++) {{
  const sent = crypto.randomBytes({MEGABYTES} << 20), hash = crypto.createHash('sha256').update(sent).digest('hex');
  const back = [];
  const socket = net.connect(Number(process.argv[1]), '127.0.0.1', () => socket.end(sent));
  socket.on('data', (piece) => back.push(piece));
  socket.on('close', () => console.log(Buffer.concat(back).equals(Buffer.concat([sent, Buffer.from(hash)]))));
}}
"""
# Sends a byte and waits for one, a hundred times, and prints what the slower half of them took at least, in ms.
PING = """
const socket = require('net').connect(Number(process.argv[1]), '127.0.0.1'), times = [];
let start;
const ping = () => { start = process.hrtime.bigint(); socket.write('x'); };
socket.on('connect', ping);
socket.on('data', () => {
  times.push(Number(process.hrtime.bigint() - start) / 1e6);
  if (times.length < 100) ping();
  else { console.log(times.sort((a, b) => a - b)[50]); socket.end(); }
});
"""


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on loopback that answers each connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection:
                answer(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def echo_all(connection: socket.socket) -> None:
    data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    connection.sendall(data + hashlib.sha256(data).hexdigest().encode())


def echo_each(connection: socket.socket) -> None:
    while data := connection.recv(100):
        connection.sendall(data)


def run_node(sandbox: Sandbox, script: str, port: int) -> str:
    done = sandbox.run([NODE, "-e", script, str(port)], timeout_seconds=60)
    assert done.returncode == 0, done.stderr_read()
    return done.stdout_read()


def test_many_connections_with_large_bodies_and_half_closes(sandbox: Sandbox) -> None:
    with serving(echo_all) as target, Forward(sandbox, NODE, target) as forward:
        assert run_node(sandbox, SENDERS, forward.port).split() == ["true"] * 10


def test_small_pieces_are_not_held_back(sandbox: Sandbox) -> None:
    with serving(echo_each) as target, Forward(sandbox, NODE, target) as forward:
        assert float(run_node(sandbox, PING, forward.port)) < 20


def test_killed_it_comes_back_on_the_same_port(sandbox: Sandbox) -> None:
    with serving(echo_each) as target, Forward(sandbox, NODE, target) as forward:
        port = forward.port
        sandbox.run(["pkill", "-KILL", "node"])
        # The one that dies may still take a connection.
        ask = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo ping >&3; head -1 <&3"
        tried = f'for i in $(seq 100); do said=$({ask}) && [ "$said" ] && break; sleep 0.1; done 2>/dev/null'
        back = sandbox.run(["bash", "-c", f"{tried}; echo $said"], timeout_seconds=60)
        assert back.stdout == b"ping\n"
        assert forward.port == port


def test_nothing_is_left_of_it(sandbox: Sandbox) -> None:
    before = set(threading.enumerate())
    with serving(echo_each) as target, Forward(sandbox, NODE, target) as forward:
        stuck = f"exec 3<>/dev/tcp/127.0.0.1/{forward.port}; echo >&3; sleep 300"
        sandbox.run(["bash", "-c", f"({stuck}) >/dev/null 2>&1 & sleep 0.3"])
    deadline = time.monotonic() + 10
    while [one for one in threading.enumerate() if one not in before and one.name == "forward"]:
        assert time.monotonic() < deadline, "threads are left"
        time.sleep(0.01)
    assert sandbox.run(["pgrep", "node"]).returncode == 1


def test_a_harness_that_does_not_answer_closes_the_connection(sandbox: Sandbox) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Forward(sandbox, NODE, unused.getsockname()[1]) as forward:
            script = f"exec 3<>/dev/tcp/127.0.0.1/{forward.port}; cat <&3"
            assert sandbox.run(["timeout", "10", "bash", "-c", script]).returncode == 0


def test_what_writes_no_frames_is_not_listened_to(sandbox: Sandbox) -> None:
    """An agent can replace neither the script nor Node, but it may write to what the forwarder has open."""
    with serving(echo_each) as target, Forward(sandbox, NODE, target) as forward:
        noise = "for fd in /proc/$(pgrep -o node)/fd/1; do head -c 100000 /dev/urandom >$fd; done"
        sandbox.run(["bash", "-c", noise])
        time.sleep(0.5)
        assert float(run_node(sandbox, PING, forward.port)) < 1000
