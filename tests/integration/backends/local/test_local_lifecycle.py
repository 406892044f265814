"""From creation to end: threads, lifetimes, killed owners, leftovers, streams."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import LocalBackend, remove_leftovers
from cooperbench.backends.local.cache import run_folder
from cooperbench.errors import SandboxDead, SandboxError, UserError
from cooperbench.sandbox.conformance import unique_duration
from cooperbench.temporary import owned_prefix
from tests.support.requirements import require_root
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.local.sandbox import LocalSandbox

OWNER = """
    import sys, time
    from cooperbench.backends.local import LocalBackend
    backend = LocalBackend(cache_dir=sys.argv[1])
    sandbox = backend.create_sandbox("host")
    sandbox.exec("bash", "-c", f"setsid sleep {sys.argv[2]} >/dev/null 2>&1 &")
    print("ready", flush=True)
    time.sleep(600)
"""


def host_sleepers(duration: str) -> int:
    """Processes `sleep DURATION` on this machine, in whatever sandbox."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == b"sleep\0%s\0" % duration.encode()
        except OSError:
            continue
    return found


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def folders(cache_dir: Path) -> set[str]:
    return {path.name for path in run_folder(cache_dir).iterdir()}


@pytest.fixture
def sandbox(local: LocalBackend) -> LocalSandbox:
    return local.create_sandbox("host", timeout=120)


def test_a_sandbox_outlives_the_thread_that_asked_for_it(local: LocalBackend) -> None:
    made: list[LocalSandbox] = []
    thread = threading.Thread(target=lambda: made.append(local.create_sandbox("host")))
    thread.start()
    thread.join()
    time.sleep(0.2)  # a signal for the end of the thread would come within this
    assert made[0].run(["echo", "alive"]).stdout == b"alive\n"
    made[0].terminate()


def test_next_start_removes_leftovers_of_a_kill(
    tmp_path: Path,
) -> None:
    duration = unique_duration()
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path), duration]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    assert eventually(lambda: host_sleepers(duration) == 1)
    assert remove_leftovers(tmp_path) == []
    assert eventually(lambda: host_sleepers(duration) == 1)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: host_sleepers(duration) == 0)
    left = list((tmp_path / "sandboxes").iterdir())
    assert [path.name.split("-")[2] for path in left] == [str(owner.pid)]
    assert remove_leftovers(tmp_path) == left
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_a_process_that_ends_leaves_nothing(tmp_path: Path) -> None:
    script = textwrap.dedent(OWNER).replace("time.sleep(600)", "")
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), unique_duration()],
        check=True,
        capture_output=True,
    )
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_a_reused_pid_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    parent = tmp_path / "sandboxes"
    own = owned_prefix("sandboxes")
    first, kind, pid, start, *rest = own.split("-")
    for other_pid, other_start in ((pid, "1"), ("999999999", start)):
        name = "-".join([first, kind, other_pid, other_start, *rest])
        (parent / f"{name}abc" / "1" / "root").mkdir(parents=True)
    mine = run_folder(tmp_path)
    assert list(parent.iterdir()) == [mine]


def test_the_end_removes_everything_and_follows_no_link(
    local: LocalBackend, cache_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("data")
    local.check()  # makes folders for all sandboxes of this process
    before = folders(cache_dir)
    sandbox = local.create_sandbox("host")
    assert len(folders(cache_dir) - before) == 1
    script = """
        ln -s "$0" link; ln -s "$0" /tmp/link
        mkdir -p closed/below && touch closed/below/file && chmod 000 closed/below closed
        mkdir -p $(printf 'd/%.0s' {1..1500})
    """
    assert sandbox.run(["bash", "-c", script, str(tmp_path)]).returncode == 0
    sandbox.terminate()
    assert folders(cache_dir) == before
    assert (tmp_path / "precious").read_text() == "data"


def test_a_sandbox_that_outlives_its_time_is_ended(local: LocalBackend, cache_dir: Path) -> None:
    before = folders(cache_dir)
    sandbox = local.create_sandbox("host", timeout=1)
    with pytest.raises(SandboxDead, match="lifetime of 1 s"):
        sandbox.run(["sleep", "900"])
    with pytest.raises(SandboxDead, match="lifetime of 1 s"):
        sandbox.run(["true"])
    assert eventually(lambda: folders(cache_dir) <= before)


def test_closing_the_backend_ends_its_sandboxes(cache_dir: Path) -> None:
    backend = LocalBackend(cache_dir=cache_dir)
    sandbox = backend.create_sandbox("host")
    backend.close()
    with pytest.raises(SandboxDead, match="backend was closed"):
        sandbox.run(["true"])


def test_a_command_that_kills_its_own_shell_is_a_result(sandbox: LocalSandbox) -> None:
    result = sandbox.run(["bash", "-c", "kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat)"])
    assert result.returncode == 137
    everything = "for f in /proc/[0-9]*/comm; do [[ $(<$f) == bash ]] && kill -9 ${f//[^0-9]/}; done; echo never"
    assert (
        sandbox.run(["bash", "-c", everything]).stdout == b""
    )  # as `pkill -9 bash`: the channel has another name
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"
    sandbox.terminate()


def test_streams(sandbox: LocalSandbox) -> None:
    stream = sandbox.open_stream(
        ["bash", "-c", 'while read -r line; do echo "got $line"; done; echo end']
    )
    for word in (b"one", b"two"):
        stream.stdin.write(word + b"\n")
        assert stream.stdout.readline() == b"got " + word + b"\n"
    assert sandbox.run(["echo", "meanwhile"]).stdout == b"meanwhile\n"
    stream.stdin.close()
    assert stream.stdout.read() == b"end\n"
    stream.close()
    sandbox.terminate()


def test_closing_a_stream_ends_its_command(sandbox: LocalSandbox) -> None:
    duration = unique_duration()
    stream = sandbox.open_stream(["bash", "-c", 'echo up; setsid sleep "$0" & wait', duration])
    assert stream.stdout.readline() == b"up\n"
    stream.close()
    stream.close()
    assert host_sleepers(duration) == 0
    sandbox.terminate()


def test_a_stream_ends_with_its_sandbox(sandbox: LocalSandbox) -> None:
    stream = sandbox.open_stream(["sleep", "900"])
    sandbox.terminate()
    assert stream.stdout.read() == b""
    stream.close()


def test_commands_put_into_the_bin_folder_are_found_first(sandbox: LocalSandbox) -> None:
    sandbox.write_file("/cooperbench/bin/git", b"#!/bin/sh\necho mine\n", 0o755)
    assert sandbox.run(["git"]).stdout == b"mine\n"
    sandbox.terminate()


def test_many_sandboxes_at_once_do_not_see_each_other(local: LocalBackend) -> None:
    sandboxes = [local.create_sandbox("host") for _ in range(6)]
    for number, sandbox in enumerate(sandboxes):
        for path in (
            "/workspace/mine",
            "/tmp/mine",
            "/root/mine",
            "/patches/mine",
            "/var/tmp/mine",
            "/mine",
        ):
            assert sandbox.run(["test", "-e", path]).returncode == 1
            sandbox.write_file(path, b"%d" % number)
    assert [sandbox.read_file("/tmp/mine") for sandbox in sandboxes] == [
        b"%d" % number for number in range(6)
    ]
    for sandbox in sandboxes:
        sandbox.terminate()


@pytest.mark.parametrize("image", ["no/such:image", "tiny", ""])
def test_an_unknown_image_says_what_can_be_used(
    cache_dir: Path, tmp_path: Path, image: str
) -> None:
    backend = LocalBackend(dataset_dir=write_tiny(tmp_path / "dataset"), cache_dir=cache_dir)
    with pytest.raises(UserError, match=r"e\.g\. cooperbench/tiny_task:task7, and 'host'"):
        backend.create_sandbox(image)


def test_a_template_that_was_removed_is_an_error_of_the_machine(local: LocalBackend) -> None:
    with pytest.raises(SandboxError, match="prepared again"):
        local.create_sandbox("local/tiny_task:task7@0123456789abcdef")


OPEN_A_CHANNEL_ON_A_FULL_DISK = textwrap.dedent("""
    import sys
    from pathlib import Path
    from cooperbench.backends.local import LocalBackend
    from cooperbench.errors import SandboxError
    disk = Path(sys.argv[1])
    sandbox = LocalBackend(cache_dir=disk / "cache").create_sandbox("host")
    try:
        for number in range(4000):
            (disk / str(number)).touch()
    except OSError:
        pass
    try:
        with sandbox._channel(fresh=True):
            pass
    except SandboxError as error:
        print(type(error).__name__, error)
    sandbox.terminate()
""")


def test_a_full_disk_of_the_host_is_not_the_doing_of_an_agent(tmp_path: Path) -> None:
    require_root()  # mounts a small disk
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=4000", "tmpfs", tmp_path], check=True)
    try:
        command = [sys.executable, "-c", OPEN_A_CHANNEL_ON_A_FULL_DISK, str(tmp_path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    assert said == "SandboxError the disk of this machine is full\n"
