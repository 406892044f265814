"""Framing: whatever bytes go in or come out, they are the same on the other side, and an answer is never made up."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.errors import SandboxDead, SandboxError, SandboxTimeout
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import (
    CappedOutput,
    Channel,
    ChannelBroken,
    ChannelUnavailable,
    Command,
    PipeTransport,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import CommandResult, Stream

RELAXED = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"")).map(os.fsdecode)
NAMES = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.sampled_from(
        [
            "IFS",
            "UID",
            "RANDOM",
            "BASH_ENV",
            "LC_ALL",
            "LANG",
            "OLDPWD",
            "cb_words",
            "a-b",
            "1x",
            "ü",
            "a b",
        ]
    ),
)


def start(
    scratch: Path, env: dict[str, str] | None = None
) -> tuple[Channel, subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["bash", "-c", sandbox_script("channel.sh"), "channel", str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ends = (os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))
    process.stdin.close()
    process.stdout.close()
    return Channel(PipeTransport(*ends)), process


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Channel]:
    channel, process = start(tmp_path_factory.mktemp("channel") / "scratch")
    channel.handshake()
    yield channel
    channel.close()
    assert process.wait(timeout=30) == 0


def run(
    channel: Channel, *argv: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> CommandResult:
    return channel.run(Command(argv, timeout_seconds=60, cwd="/", stdin=stdin, env=env or {}))


@RELAXED
@given(words=st.lists(WORDS, min_size=1, max_size=5))
def test_arguments(channel: Channel, words: list[str]) -> None:
    assert run(channel, "printf", "%s\\0", *words).stdout.split(b"\0")[:-1] == [
        os.fsencode(word) for word in words
    ]


@RELAXED
@given(env=st.dictionaries(NAMES, WORDS, max_size=5))
def test_environment(channel: Channel, env: dict[str, str]) -> None:
    found = run(channel, "env", "-0", env=env).stdout.split(b"\0")
    # bash, not the channel, drops nothing but what env(1) itself sets anew.
    assert {os.fsencode(f"{name}={value}") for name, value in env.items()} <= set(found)


@RELAXED
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.binary(min_size=4000, max_size=4200),
        st.binary(min_size=8100, max_size=8300),
    )
)
def test_stdin_and_output(channel: Channel, data: bytes) -> None:
    result = run(channel, "bash", "-c", "tee /dev/stderr", stdin=data)
    assert (result.returncode, result.stdout, result.stderr) == (0, data, data)


@pytest.mark.parametrize("size", [65_500, 65_536, 65_600, 200_000])
def test_output_that_about_fills_a_pipe(channel: Channel, size: int) -> None:
    script = "head -c $0 /dev/zero; head -c $0 /dev/zero | tr '\\0' x >&2; exit 7"
    result = run(channel, "bash", "-c", script, str(size))
    assert (result.returncode, result.stdout, result.stderr) == (7, bytes(size), b"x" * size)


def test_long_output_right_after_long_output(channel: Channel) -> None:
    """The readers of the second command have only just been started."""
    for number in range(20):
        result = run(channel, "bash", "-c", "head -c $0 /dev/zero", str(5000 + number))
        assert (result.returncode, result.stdout) == (0, bytes(5000 + number))


@pytest.mark.parametrize(("written", "byte"), [(r"\0", b"\0"), (r"\\", b"\\"), ("x", b"x")])
def test_a_byte_from_the_background_after_the_end(
    channel: Channel, written: str, byte: bytes
) -> None:
    script = f"printf now; (sleep 0.02; printf '{written}') &"
    assert run(channel, "bash", "-c", script).stdout == b"now" + byte


def test_commands_that_end_when_readers_are_started_for_them(channel: Channel) -> None:
    for milliseconds in range(40, 60):
        script = f"echo out; echo err >&2; sleep 0.0{milliseconds}; exit 7"
        result = run(channel, "bash", "-c", script)
        assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


def test_an_end_that_is_not_heard_is_seen_soon(channel: Channel) -> None:
    """What bash reads just when its time is up is lost, which is no reason to wait for a second."""
    times = [
        run(channel, "sleep", f"{0.044 + 0.0001 * step}").duration_seconds for step in range(60)
    ]
    assert sorted(times)[-3] < 0.9


def test_output_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    """As on a machine with too much to do: what takes a command's output up may be far behind the command."""
    slow = tmp_path / "bin" / "split"
    slow.parent.mkdir()
    slow.write_text('#!/bin/sh\nsleep 0.5\nexec /usr/bin/split "$@"\n')
    slow.chmod(0o755)
    channel, process = start(tmp_path / "scratch", {"PATH": f"{slow.parent}:{os.environ['PATH']}"})
    channel.handshake()
    assert run(channel, "echo", "late").stdout == b"late\n"
    channel.close()
    assert process.wait(timeout=30) == 0


@RELAXED
@given(data=st.binary(max_size=300), mode=st.sampled_from([0o600, 0o644, 0o755]))
def test_files(channel: Channel, tmp_path: Path, data: bytes, mode: int) -> None:
    path = tmp_path / "a\nfolder" / "file"
    channel.write_file(str(path), data, mode)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == mode
    assert channel.read_file(str(path)) == data


@given(word=st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"")))
def test_a_quoted_word_is_one_printable_line(word: bytes) -> None:
    assert all(32 <= byte < 127 for byte in quote(word))


@given(pieces=st.lists(st.binary(max_size=50), max_size=4), limit=st.integers(0, 60))
def test_capping_counts_what_it_drops(pieces: list[bytes], limit: int) -> None:
    output, data = CappedOutput(limit), b"".join(pieces)
    for piece in pieces:
        output.add(piece)
    kept = output.taken()
    assert len(kept) == min(limit, len(data))
    assert len(kept) + output.cut == len(data)
    assert data.startswith(kept[: len(kept) // 2])
    assert data.endswith(kept[len(kept) // 2 + len(kept) % 2 :])


class Scripted:
    """The other end says what the test wants, then nothing more."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.closed = False

    def send(self, data: bytes, deadline: float) -> None:
        pass

    def receive(self, deadline: float) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None:
        self.closed = True


class Silent(Scripted):
    def receive(self, deadline: float) -> bytes:
        raise TimeoutError


@given(
    answer=st.one_of(
        st.binary(max_size=80),
        st.from_regex(rb"\A= 1 \d{1,3} [01] \d+ [tb] \d+ \d+ [tb] \d+ \d+\n", fullmatch=False),
    )
)
def test_garbage_is_never_a_result(answer: bytes) -> None:
    transport = Scripted(answer)
    channel = Channel(transport)
    try:
        result = run(channel, "true")
    except SandboxError:
        assert not channel.usable or answer.startswith(b"! 1 ")
        return
    # Only a whole and well-formed answer gets here.
    assert answer.startswith(b"= 1 ")
    assert b". " in answer or b".\n" in answer
    assert result.returncode <= 999


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"= 1 0 0 5 t 3 0 t 0 0\nab",
        b"= 1 0 0 5 t 0 0 t 0 0\n",
        b"= 2 0 0 5 t 0 0 t 0 0\n. \n",
        b"= 1 0 0 5 b 0 0 t 0 0\nYWI\n. 0 0\n",
        b"= 1 0 0 5 b 0 0 t 0 0\nYWI=\n. 0 137\n",
        b"= 1 0 0 5 t 99999999999 0 t 0 0\n",
        b"x" * 5000,
        b"! 1 broken 4\nfull",
    ],
)
def test_a_broken_answer_is_a_dead_channel(answer: bytes) -> None:
    transport = Scripted(answer)
    channel = Channel(transport)
    with pytest.raises(ChannelBroken):
        run(channel, "true")
    assert transport.closed
    with pytest.raises(SandboxDead):
        run(channel, "true")


def test_a_whole_answer_in_pieces() -> None:
    answer = b"= 1 7 0 2500000 t 2 0 b 0 5\nokYWI=\n. 0 0 \n"
    result = run(
        Channel(Scripted(*(answer[place : place + 1] for place in range(len(answer))))), "true"
    )
    assert (result.returncode, result.stdout, result.stderr, result.stderr_cut) == (
        7,
        b"ok",
        b"ab",
        5,
    )
    assert result.duration_seconds == 2.5


def test_no_answer_at_all() -> None:
    transport = Silent()
    with pytest.raises(SandboxTimeout):
        run(Channel(transport), "true")
    assert transport.closed


def test_a_sandbox_without_the_tools_says_which(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in (
        "bash",
        "mkdir",
        "rm",
        "head",
        "tail",
        "base64",
        "cat",
        "wc",
        "mv",
        "chmod",
        "env",
    ):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    channel, process = start(tmp_path / "scratch", {"PATH": str(tmp_path / "bin")})
    with pytest.raises(ChannelUnavailable, match="split is missing"):
        channel.handshake()
    channel.close()
    process.wait(timeout=30)


def test_nul_bytes_are_refused_before_anything_is_sent(channel: Channel) -> None:
    with pytest.raises(ValueError, match="NUL"):
        run(channel, "echo", "a\0b")
    assert run(channel, "echo", "fine").stdout == b"fine\n"


class OwnSandbox(Sandbox):
    """Channels of this machine, with nothing around them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lifetime_seconds=300, workdir="/")
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def open_stream(self, argv: Sequence[str]) -> Stream:
        raise NotImplementedError

    def _remove(self) -> None:
        self._close_channels()
        for process in self.processes:
            process.kill()
            process.wait(timeout=30)

    def _open_channel(self) -> Channel:
        channel, process = start(self.folder / f"scratch-{len(self.processes)}")
        self.processes.append(process)
        channel.handshake()
        return channel


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("STOP", 124)])
def test_a_killed_or_stopped_shell_is_the_commands_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: str, code: int
) -> None:
    monkeypatch.setattr("cooperbench.sandbox.channel.BACKSTOP_SECONDS", 1.0)
    sandbox = OwnSandbox(tmp_path)
    script = f"echo $$ >{tmp_path}/pid; kill -{signal} {_pid_of_channel()}; exec sleep 900"
    result = sandbox.run(["bash", "-c", script], timeout_seconds=2)
    assert (result.returncode, result.timed_out) == (code, signal == "STOP")
    assert "the shell that ran the command was killed or stopped" in result.stderr_read()
    kill = 'kill -9 "$(cat "$0")" && echo killed'
    after = sandbox.run(["bash", "-c", kill, f"{tmp_path}/pid"], timeout_seconds=60)
    assert (after.stdout == b"killed\n") == (signal == "KILL"), "nothing outlives its time limit"
    assert len(sandbox.processes) == 2
    sandbox.terminate()


def _pid_of_channel() -> str:
    """In bash: the parent of the shell that waits for the command."""
    return "$(cut -d ' ' -f 4 /proc/$PPID/stat)"


def test_background_output_is_limited(
    tmp_path: Path,
) -> None:
    channel, process = start(tmp_path / "scratch")
    channel.handshake()
    script = "echo started; (yes | head -c 30000000; touch $0) &"
    noisy = ["bash", "-c", script, str(tmp_path / "done")]
    first = channel.run(Command(noisy, timeout_seconds=60, cwd="/", output_limit=200_000))
    assert first.stdout.startswith(b"started\n")
    wait = 'while [ ! -e "$0" ]; do sleep 0.05; done'
    assert run(channel, "bash", "-c", wait, str(tmp_path / "done")).returncode == 0
    channel.close()
    process.wait(timeout=30)
