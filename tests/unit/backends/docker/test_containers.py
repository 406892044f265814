"""Frames of the engine, however they are cut up on the way, and both ends of a connection."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.backends.docker.attached import Attached
from cooperbench.backends.docker.sandbox import CHANNEL_ENDED, ContainerStream

_frames = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=50)), max_size=10
)


def pack(source: int, data: bytes) -> bytes:
    return bytes([source, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(_frames, st.lists(st.integers(1, 20), max_size=100))
def test_frames_survive_any_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    packed = b"".join(pack(*frame) for frame in frames)
    mine, other = socket.socketpair()
    reader, got, at = ContainerStream(Attached(mine, b"")), list[tuple[int, bytes]](), 0
    for size in [*cuts, len(packed)]:
        other.sendall(packed[at : at + size])
        at += size
        with suppress(TimeoutError):
            got += reader.receive_frames(0)
    reader.close()
    other.close()
    for source in (1, 2):
        sent = b"".join(data for number, data in frames if number == source)
        assert b"".join(data for number, data in got if number == source) == sent


@pytest.fixture
def ends() -> tuple[ContainerStream, socket.socket]:
    mine, other = socket.socketpair()
    return ContainerStream(Attached(mine, b"")), other


def soon() -> float:
    return time.monotonic() + 30


def test_stdout_and_stderr_are_apart(ends: tuple[ContainerStream, socket.socket]) -> None:
    stream, other = ends
    other.sendall(pack(2, b"complaint") + pack(1, b"answer"))
    assert stream.receive(soon()) == b"answer"
    assert stream.stderr == b"complaint"
    other.close()
    assert stream.receive(soon()) == b""
    stream.close()


def test_a_mark_on_stderr_is_the_end_but_loses_nothing(
    ends: tuple[ContainerStream, socket.socket],
) -> None:
    stream, other = ends
    other.sendall(pack(2, CHANNEL_ENDED) + pack(1, b"overtaken"))
    assert stream.receive(soon()) == b"overtaken"
    assert stream.receive(soon()) == b""
    stream.close()
    other.close()


def test_silence_is_a_timeout(ends: tuple[ContainerStream, socket.socket]) -> None:
    stream, other = ends
    with pytest.raises(TimeoutError):
        stream.receive(time.monotonic() + 0.05)
    stream.close()
    other.close()


def test_large_data_is_sent_while_another_thread_receives(
    ends: tuple[ContainerStream, socket.socket],
) -> None:
    stream, other = ends
    data = bytes(5_000_000)
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.append(stream.receive(soon())))
    sending = threading.Thread(target=stream.send, args=(data, soon()))
    reading.start()
    sending.start()
    got = 0
    while got < len(data):
        got += len(other.recv(1 << 20))
    other.sendall(pack(1, b"thanks"))
    reading.join()
    sending.join()
    assert received == [b"thanks"]
    stream.close()
    other.close()


def test_closing_wakes_up_a_thread_that_receives(
    ends: tuple[ContainerStream, socket.socket],
) -> None:
    stream, other = ends
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.append(stream.receive(soon())))
    reading.start()
    stream.close()
    reading.join()
    assert received == [b""]
    other.close()
