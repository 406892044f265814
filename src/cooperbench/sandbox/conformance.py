"""A pytest suite with what every sandbox must do, for any backend.

    class TestMyBackend(SandboxConformance):
        @pytest.fixture
        def make_sandbox(self):
            return lambda: open_sandbox(
                MyBackend(), "image", timeout_seconds=300, options=SandboxOptions()
            )

Sandboxes need bash and coreutils. The tests write only to the working directory.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult

_COUNT_PROCESSES = """
count=0
for file in /proc/[0-9]*/cmdline; do
  mapfile -d '' -t argv <"$file" || continue
  [[ ${argv[0]} == sleep && ${argv[1]} == "$1" ]] && ((++count))
done 2>/dev/null
echo "$count"
"""


def bash(sandbox: Sandbox, script: str, *args: str, timeout_seconds: float = 60) -> CommandResult:
    """Run a bash script with arguments."""
    return sandbox.run(["bash", "-c", script, "bash", *args], timeout_seconds=timeout_seconds)


def sleepers(sandbox: Sandbox, duration: str) -> int:
    """Count the processes `sleep DURATION`."""
    return int(bash(sandbox, _COUNT_PROCESSES, duration).stdout)


def unique_duration() -> str:
    """Return about 900 seconds, different each time, to recognize a test's own sleepers."""
    return f"900.{secrets.randbelow(10**9):09d}"


def _empty(sandbox: Sandbox) -> bool:
    try:
        return bash(sandbox, "shopt -s dotglob nullglob; rm -rf -- *").returncode == 0
    except SandboxDead:
        return False


class SandboxConformance:
    """The tests. Subclass it and override the fixture `make_sandbox`."""

    isolated = False
    """Whether killing every process in a sandbox is harmless to the rest of the machine."""
    shared = False
    """Whether tests use the same sandbox one after the other, emptied, because creating one takes
    long."""
    spare: ClassVar[list[Sandbox]]
    """Sandboxes that the next test can use."""

    @pytest.fixture
    def make_sandbox(self) -> Callable[[], Sandbox]:
        """Return a function that opens a sandbox."""
        raise NotImplementedError("override the fixture make_sandbox")

    @pytest.fixture
    def sandbox(self, make_sandbox: Callable[[], Sandbox]) -> Iterator[Sandbox]:
        """Lend a sandbox to one test."""
        sandbox = self.spare.pop() if self.spare else make_sandbox()
        yield sandbox
        if self.shared and _empty(sandbox):
            self.spare.append(sandbox)
        else:
            sandbox.terminate()

    @classmethod
    def setup_class(cls) -> None:
        """Begin without spare sandboxes."""
        cls.spare = []

    @classmethod
    def teardown_class(cls) -> None:
        """Terminate the spare sandboxes."""
        for sandbox in cls.spare:
            sandbox.terminate()

    @pytest.mark.parametrize(
        ("script", "code"),
        [
            ("exit 0", 0),
            ("exit 1", 1),
            ("exit 3", 3),
            ("exit 124", 124),
            ("exit 127", 127),
            ("exit 255", 255),
            ("kill -KILL $$", 128 + signal.SIGKILL),
            ("kill -TERM $$", 128 + signal.SIGTERM),
            ("kill -SEGV $$", 128 + signal.SIGSEGV),
        ],
    )
    def test_exit_codes(self, sandbox: Sandbox, script: str, code: int) -> None:
        """Exit codes are reported; a signal N is 128 + N."""
        result = bash(sandbox, script)
        assert (result.returncode, result.timed_out) == (code, False)

    def test_a_command_that_is_not_there(self, sandbox: Sandbox) -> None:
        """A missing command has the exit code 127."""
        assert sandbox.exec("no-such-command-anywhere").returncode == 127

    def test_interrupts_are_not_ignored(self, sandbox: Sandbox) -> None:
        """Commands do not inherit an ignored SIGINT."""
        status = bash(sandbox, "cat /proc/self/status").stdout_read()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        assert int(ignored.split()[1], 16) & (1 << (signal.SIGINT - 1)) == 0

    def test_stdout_and_stderr_are_apart_also_if_reopened_by_name(self, sandbox: Sandbox) -> None:
        """Stdout and stderr are separate, also when a command opens /dev/stdout."""
        script = "for i in 1 2 3; do echo o$i; echo e$i >&2; done; echo o4 >/dev/stdout; echo o5"
        result = bash(sandbox, script)
        assert result.stdout_read() == "o1\no2\no3\no4\no5\n"
        assert result.stderr_read() == "e1\ne2\ne3\n"

    @pytest.mark.parametrize(
        "data",
        ["αβγ – 日本語 – 🎉\n".encode(), bytes(range(256)) * 40, b"no newline", b"\n\n", b"\0"],
        ids=["unicode", "bytes", "no newline", "newlines", "zero"],
    )
    def test_output_comes_byte_for_byte(self, sandbox: Sandbox, data: bytes) -> None:
        """Output is not changed, whatever bytes it has."""
        sandbox.write_file("data", data)
        result = bash(sandbox, "cat data; cat data >&2")
        assert (result.stdout, result.stderr) == (data, data)

    def test_huge_output_is_capped_and_the_command_goes_on(self, sandbox: Sandbox) -> None:
        """Long output is cut in the middle, counted, and does not end the command."""
        size = 20_000_000
        result = bash(sandbox, f"echo first; head -c {size} /dev/zero; echo last; echo done >after")
        assert result.returncode == 0
        assert len(result.stdout) <= 1_000_000
        assert result.stdout.startswith(b"first\n")
        assert result.stdout.endswith(b"last\n")
        assert len(result.stdout) + result.stdout_cut == size + len("first\nlast\n")
        assert f"{result.stdout_cut} bytes of output cut" in result.stdout_read()
        assert sandbox.read_file("after") == b"done\n"

    def test_a_small_output_limit(self, sandbox: Sandbox) -> None:
        """The output limit is kept exactly."""
        result = sandbox.run(["bash", "-c", "printf 0123456789"], output_limit=4)
        assert (result.stdout, result.stdout_cut) == (b"0189", 6)

    @pytest.mark.parametrize("size", [0, 1, 8192, 8193, 1_048_576])
    def test_files_in_and_out(self, sandbox: Sandbox, size: int) -> None:
        """Files of any size and content can be written and read."""
        patch_line = b"+line 'quoted' \"double\" $var `tick` \\ \r\n"
        for data in (os.urandom(size), (patch_line * (size // len(patch_line) + 1))[:size]):
            sandbox.write_file("a folder/with ünïcödé/file", data)
            assert bash(sandbox, "wc -c <*/*/file").stdout.strip() == b"%d" % size
            assert sandbox.read_file("a folder/with ünïcödé/file") == data

    def test_files_are_replaced_whole_with_their_mode(self, sandbox: Sandbox) -> None:
        """Writing replaces a file and leaves no temporary file."""
        sandbox.write_file("script", b"#!/bin/sh\necho one\n", 0o755)
        sandbox.write_file("script", b"#!/bin/sh\necho two\n", 0o755)
        assert (
            bash(sandbox, "./script && stat -c %a script && ls -A").stdout == b"two\n755\nscript\n"
        )

    def test_files_that_cannot_be(self, sandbox: Sandbox) -> None:
        """Impossible file operations raise an error and do no harm."""
        with pytest.raises(FileNotFoundError, match="no/such/file"):
            sandbox.read_file("no/such/file")
        bash(sandbox, "mkdir folder; echo >file")
        with pytest.raises(SandboxError, match="folder"):
            sandbox.write_file("folder", b"data")
        with pytest.raises(SandboxError, match="file/below"):
            sandbox.write_file("file/below", b"x" * 100_000)
        with pytest.raises(SandboxError, match="folder"):
            sandbox.read_file("folder")
        assert bash(sandbox, "echo still here").stdout == b"still here\n"

    def test_a_command_that_is_too_slow_leaves_its_output_and_no_process(
        self, sandbox: Sandbox
    ) -> None:
        """A timeout kills all processes and keeps the output so far."""
        duration = unique_duration()
        script = """
            sleep "$1" &
            setsid sleep "$1" &
            (setsid bash -c 'sleep "$0" & wait' "$1" &)
            nohup sleep "$1" >/dev/null 2>&1 &
            trap '' TERM
            echo started; echo error >&2
            while :; do sleep "$1"; done
        """
        result = bash(sandbox, script, duration, timeout_seconds=2)
        assert (result.returncode, result.timed_out) == (TIMEOUT_EXIT_CODE, True)
        assert (result.stdout, result.stderr) == (b"started\n", b"error\n")
        assert sleepers(sandbox, duration) == 0

    def test_background_processes_neither_block_nor_die(self, sandbox: Sandbox) -> None:
        """A command may leave a process in the background."""
        duration = unique_duration()
        result = bash(sandbox, 'sleep "$1" & echo $!', duration)
        assert (result.returncode, result.timed_out) == (0, False)
        assert sleepers(sandbox, duration) == 1
        assert bash(sandbox, 'kill "$1"', result.stdout_read().strip()).returncode == 0

    def test_a_background_process_can_write_after_its_command_has_ended(
        self, sandbox: Sandbox
    ) -> None:
        """A background process is not killed when it writes later."""
        write_late = "echo late && echo late >&2 && echo written >late"
        script = f"(while [ ! -e go ]; do sleep 0.05; done; {write_late}) & echo $!"
        pid = bash(sandbox, script).stdout_read().strip()
        bash(sandbox, 'touch go; while kill -0 "$1" 2>/dev/null; do sleep 0.05; done', pid)
        assert sandbox.read_file("late") == b"written\n"

    # With ids: pytest puts the name of a test into the environment of the processes that it starts.
    @pytest.mark.parametrize(
        "data",
        [b"", b"text\n", bytes(range(256)), b"\0", b"x" * 300_000],
        ids=["nothing", "text", "bytes", "zero", "large"],
    )
    def test_stdin(self, sandbox: Sandbox, data: bytes) -> None:
        """A command reads its input byte for byte."""
        assert sandbox.run(["cat"], stdin=data, timeout_seconds=60).stdout == data

    def test_environment(self, sandbox: Sandbox) -> None:
        """Variables reach one command, whatever names and values they have."""
        env = {"PLAIN": "1", "ODD": "a\nb'c\"d\\e$f`g", "with-dash": "x", "ÜNÏ": "ö", "EMPTY": ""}
        env |= {"LC_ALL": "C", "IFS": "z"}
        variables = sandbox.run(["env", "-0"], env=env).stdout.split(b"\0")
        assert {f"{name}={value}".encode() for name, value in env.items()} <= set(variables)
        assert b"PLAIN=1" not in sandbox.run(["env", "-0"]).stdout.split(b"\0")

    def test_working_directory(self, sandbox: Sandbox) -> None:
        """A command runs in the requested directory; 126 if there is none."""
        workdir = bash(sandbox, "mkdir -p 'a b/c'; pwd").stdout_read().strip()
        assert sandbox.run(["pwd"], cwd="a b/c").stdout_read() == f"{workdir}/a b/c\n"
        assert sandbox.run(["pwd"], cwd="/").stdout == b"/\n"
        assert sandbox.run(["pwd"], cwd="not/there").returncode == 126

    def test_odd_arguments(self, sandbox: Sandbox) -> None:
        """Arguments are not changed, whatever characters they have."""
        arguments = ["", " ", "-", "-n", "a b", "'", '"', "\\", "$HOME", "`id`", "$(id)"]
        arguments += ["*", "~", "a\nb", "\t", "é", "\x7f", "é'" * 30_000, "-"]
        result = sandbox.run(["printf", "%s\\0", *arguments])
        assert result.stdout.decode().split("\0")[:-1] == arguments

    def test_commands_are_stateless(self, sandbox: Sandbox) -> None:
        """A command does not see what an earlier one did to its shell."""
        bash(
            sandbox, "cd /; export LEFT=1; LEFT=1; alias ls=false; set -e; ulimit -n 10; umask 077"
        )
        result = bash(sandbox, "echo ${LEFT-unset}; pwd; umask")
        assert result.stdout_read().splitlines()[0] == "unset"
        assert result.stdout_read().splitlines()[1] != "/"

    def test_eight_threads_at_once(self, sandbox: Sandbox) -> None:
        """All methods can be used from several threads."""

        def work(number: int) -> bool:
            path, data = f"thread-{number}", os.urandom(20_000)
            sandbox.write_file(path, data)
            result = bash(sandbox, 'echo "$1"; cat "$2"', str(number), path)
            return result.stdout == b"%d\n" % number + data and sandbox.read_file(path) == data

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(24)))

    def test_a_slow_command_does_not_hold_up_another_thread(self, sandbox: Sandbox) -> None:
        """Commands of several threads run at the same time."""
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(
                bash, sandbox, "while [ ! -e go ]; do sleep 0.05; done; echo went"
            )
            assert bash(sandbox, "touch go").returncode == 0
            assert waiting.result().stdout == b"went\n"

    def test_commands_that_end_when_the_harness_looks(self, sandbox: Sandbox) -> None:
        """A harness that polls once a second must not miss a command that ends just then."""

        def work(number: int) -> int:
            return bash(
                sandbox, f"sleep {0.985 + number * 0.0007:.4f}; exit {100 + number}"
            ).returncode

        with ThreadPoolExecutor(24) as threads:
            assert list(threads.map(work, range(24))) == [100 + number for number in range(24)]

    def test_use_after_the_end(self, sandbox: Sandbox) -> None:
        """After its end, any use raises SandboxDead."""
        sandbox.terminate()
        sandbox.terminate()
        with pytest.raises(SandboxDead):
            sandbox.exec("true")
        with pytest.raises(SandboxDead):
            sandbox.read_file("file")
        with pytest.raises(SandboxDead):
            sandbox.write_file("file", b"")

    def test_termination_ends_a_running_command(self, sandbox: Sandbox) -> None:
        """`terminate` makes a running command raise SandboxDead."""
        if not self.isolated:
            pytest.skip("only a backend with processes of its own can end them")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(bash, sandbox, "touch started; sleep 900", timeout_seconds=600)
            bash(sandbox, "while [ ! -e started ]; do sleep 0.05; done")
            sandbox.terminate()
            with pytest.raises(SandboxDead):
                waiting.result()

    def test_a_sandbox_whose_processes_were_all_killed(self, sandbox: Sandbox) -> None:
        """A sandbox survives `kill -9 -1`, or is reported as dead."""
        if not self.isolated:
            pytest.skip("would kill the processes of the whole machine")
        try:
            code = bash(sandbox, "kill -9 -1").returncode
        except SandboxDead:
            with pytest.raises(SandboxDead):
                sandbox.run(["true"])
        else:  # its first process is out of reach, and it goes on
            assert code == 137
            assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"
