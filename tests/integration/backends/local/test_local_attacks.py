"""What code in a sandbox, or a death at the wrong moment, must not bring about. Ways out are in `test_local_escape`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import Limits, LocalBackend
from cooperbench.backends.local.bubblewrap import spawner as local_spawner
from cooperbench.backends.local.seccomp import seccomp_program
from cooperbench.backends.local.spawner import ControlGroups
from cooperbench.dataset.discovery import load_tasks
from cooperbench.errors import SandboxDead, SandboxDestroyed
from cooperbench.sandbox.conformance import unique_duration
from tests.integration.backends.local.test_local_lifecycle import OWNER, eventually, host_sleepers
from tests.integration.backends.local.test_templates import LARGE
from tests.support.requirements import require_control_group
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.local.sandbox import LocalSandbox
    from cooperbench.sandbox.contract import CommandResult

MEBIBYTE = 1024**2


@pytest.fixture
def sandbox(local: LocalBackend) -> LocalSandbox:
    return local.create_sandbox("host", timeout=120)


def bash(sandbox: LocalSandbox, script: str) -> CommandResult:
    return sandbox.run(["bash", "-c", script], timeout_seconds=60)


def last(sandbox: LocalSandbox, script: str, timeout_seconds: float = 60) -> CommandResult:
    return sandbox.run_last(["bash", "-c", script], timeout_seconds=timeout_seconds)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def repeat(action: Callable[[], object]) -> None:
    for _ in range(10):
        action()


def limited(cache_dir: Path, **limits: int) -> LocalSandbox:
    return LocalBackend(cache_dir=cache_dir, limits=Limits(**limits)).create_sandbox(
        "host", timeout=120
    )


# What ends a sandbox, and who is to blame.


@pytest.mark.parametrize("pieces", ["harness", "harness and spawner"])
def test_nothing_outlives_a_killed_harness(tmp_path: Path, pieces: str) -> None:
    duration = unique_duration()
    script = textwrap.dedent(OWNER).replace('print("ready"', 'print(sandbox.init_pid, "ready"')
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), duration], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    bubblewrap = parent(int(owner.stdout.readline().split()[0]))
    spawner = parent(bubblewrap)
    assert parent(spawner) == owner.pid
    assert eventually(lambda: host_sleepers(duration) == 1)
    if pieces == "harness and spawner":
        os.kill(spawner, signal.SIGKILL)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: host_sleepers(duration) == 0)
    assert eventually(
        lambda: not any(Path("/proc", str(pid)).exists() for pid in (bubblewrap, spawner))
    )


def test_a_judged_shell_is_closed_to_what_it_runs(sandbox: LocalSandbox) -> None:
    attack = (
        "import os\n"
        "for pid in (1, os.getppid()):\n"
        "    for path in ('mem', 'fd/1', 'environ'):\n"
        "        try:\n            open(f'/proc/{pid}/{path}', 'r+b', buffering=0)\n"
        "            print('opened', pid, path)\n"
        "        except OSError:\n            pass\n"
        "print('tried')\n"
    )
    sandbox.write_file("attack.py", attack.encode())
    script = 'python3 "$1"; (python3 "$1"); exit 3'
    result = sandbox.run_last(["bash", "-c", script, "runner", "attack.py"], timeout_seconds=60)
    assert (result.returncode, result.stdout) == (3, b"tried\ntried\n")


def test_killing_everything_inside_does_not_end_it(sandbox: LocalSandbox) -> None:
    assert bash(sandbox, "kill -9 -1").returncode == 137
    assert bash(sandbox, "for n in {1..64}; do kill -$n 1; done; echo alive").stdout == b"alive\n"
    assert bash(sandbox, "echo alive").stdout == b"alive\n"
    sandbox.terminate()


def test_ended_first_process_is_the_agents_fault(
    sandbox: LocalSandbox,
) -> None:
    # As the kernel does when there is no memory left.
    os.kill(sandbox.init_pid, signal.SIGKILL)
    with pytest.raises(SandboxDestroyed, match="its processes were killed"):
        bash(sandbox, "sleep 60")
    with pytest.raises(SandboxDestroyed):
        bash(sandbox, "true")


def test_a_channel_that_was_stopped_is_replaced(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.sandbox.channel.BACKSTOP_SECONDS", 2.0)
    script = "for f in $(grep -l cooperbench-io /proc/[0-9]*/comm); do kill -STOP ${f//[^0-9]/}; done; sleep 9"
    result = sandbox.run(["bash", "-c", script], timeout_seconds=0.5)
    assert (result.returncode, result.timed_out) == (124, True)
    assert bash(sandbox, "echo alive").stdout == b"alive\n"


@pytest.mark.parametrize("generations", [1, 2])
def test_bubblewrap_or_the_spawner_being_killed_is_not(tmp_path: Path, generations: int) -> None:
    backend = LocalBackend(cache_dir=tmp_path)
    sandbox = backend.create_sandbox("host")
    victim = sandbox.init_pid
    for _ in range(generations):
        victim = parent(victim)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(SandboxDead, match="bubblewrap was killed") as death:
        bash(sandbox, "sleep 60")
    assert not isinstance(death.value, SandboxDestroyed)
    assert bash(backend.create_sandbox("host"), "echo again").stdout == b"again\n"
    backend.close()


# Limits.


def test_memory(cache_dir: Path) -> None:
    require_control_group("memory" in local_spawner().limits)
    sandbox = limited(cache_dir, memory_bytes=100 * MEBIBYTE)
    assert bash(sandbox, "python3 -c 'x = bytearray(50 << 20)'").returncode == 0
    assert bash(sandbox, "python3 -c 'x = bytearray(200 << 20)'").returncode == 137
    assert bash(sandbox, "echo alive").stdout == b"alive\n"
    # Files in memory belong to no process: in the end the kernel kills them all.
    with pytest.raises(SandboxDestroyed):
        repeat(lambda: bash(sandbox, "head -c 200M /dev/zero >/dev/shm/x"))


def test_processes(cache_dir: Path) -> None:
    # A regular user's processes are limited without control groups too.
    require_control_group("processes" in local_spawner().limits or os.geteuid() != 0)
    sandbox = limited(cache_dir, processes=60)
    script = "for i in {1..40}; do sleep 60 & done; echo ok"
    assert bash(sandbox, script).stdout == b"ok\n"
    more = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(60)"
    assert b"BlockingIOError" in sandbox.run(["python3", "-c", more], timeout_seconds=60).stderr
    sandbox.terminate()


def test_a_file_that_is_too_large(cache_dir: Path) -> None:
    sandbox = limited(cache_dir, disk_bytes=20 * MEBIBYTE)
    assert bash(sandbox, "ulimit -f unlimited").returncode != 0
    assert bash(sandbox, "head -c 30M /dev/zero >x").returncode != 0
    assert bash(sandbox, "stat -c %s x").stdout == b"%d\n" % (20 * MEBIBYTE)
    sandbox.terminate()


@pytest.mark.parametrize(
    "script",
    [
        "for i in {1..9}; do head -c 10M /dev/urandom >/workspace/$i; sync; sleep 1; done; sleep 30",
        "mkdir d; cd d; touch {1..5000}; sleep 30",
    ],
    ids=["large", "empty"],
)
def test_too_many_files(cache_dir: Path, script: str) -> None:
    sandbox = limited(cache_dir, disk_bytes=20 * MEBIBYTE)
    with pytest.raises(SandboxDestroyed, match=r"more than its 0\.0 GiB of disk or 1280 files"):
        bash(sandbox, script)


# The last command, which is judged.


def test_a_link_where_something_is_mounted_does_not_lead_out(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    """Bubblewrap has the host's files in /oldroot while it starts a sandbox, and makes what it mounts on."""
    sandbox.run(
        ["bash", "-c", f"mv /cooperbench /moved; ln -s /oldroot{tmp_path} /cooperbench"], cwd="/"
    )
    with pytest.raises(SandboxDestroyed):
        last(sandbox, "true")
    assert list(tmp_path.iterdir()) == []
    sandbox.terminate()


def test_last_command_sees_nothing_of_the_harness(sandbox: LocalSandbox) -> None:
    sandbox.write_file("file", b"kept")
    duration = unique_duration()
    assert bash(sandbox, f"setsid sleep {duration} >/dev/null 2>&1 & mkdir -p sub").returncode == 0
    script = "cat file; pwd; echo $HOME; cat /proc/[0-9]*/comm; ls /proc/$$/fd /cooperbench/io; echo err >&2; exit 7"
    result = last(sandbox, script)
    assert result.stdout_read().split("\n") == [
        *("kept/workspace", "/root", "cooperbench-io", "cooperbench-io"),
        *("/cooperbench/io:", "", "/proc/2/fd:", "0", "1", "2", ""),
    ]
    assert (result.returncode, result.stderr, result.timed_out) == (7, b"err\n", False)
    assert host_sleepers(duration) == 0
    with pytest.raises(SandboxDead, match="last command"):
        bash(sandbox, "true")
    sandbox.terminate()


def test_the_last_command_cannot_be_made_to_look_like_a_success(sandbox: LocalSandbox) -> None:
    script = """
        for fd in /proc/1/fd/* /proc/1/mem; do echo forged >$fd; done
        kill -9 1; kill -INT 1; kill -CHLD 1; kill -TERM 1
        echo before; kill -9 $$
    """
    result = last(sandbox, script)
    assert (result.returncode, result.stdout) == (137, b"before\n")
    assert b"forged" not in result.stderr
    sandbox.terminate()


@pytest.mark.parametrize(
    "script", ["echo so far; sleep 600", "echo so far; exec >/dev/null 2>&1; sleep 600"]
)
def test_a_last_command_that_takes_too_long(sandbox: LocalSandbox, script: str) -> None:
    result = last(sandbox, script, timeout_seconds=1)
    assert (result.returncode, result.timed_out, result.stdout) == (124, True, b"so far\n")
    assert result.duration_seconds < 20
    sandbox.terminate()


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["no-such-program"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -9 -1"], 137)],
)
def test_exit_codes_of_last_commands(sandbox: LocalSandbox, argv: list[str], code: int) -> None:
    if code == 137:  # kill spares whoever calls it and process 1
        argv = ["bash", "-c", "(kill -9 -1); true"]
    assert sandbox.run_last(argv, timeout_seconds=60).returncode == code
    sandbox.terminate()


def test_a_last_command_with_much_output_and_variables(sandbox: LocalSandbox) -> None:
    argv = ["bash", "-c", 'echo "$BASH_ENV $A"; head -c 3000000 /dev/zero; echo end']
    env = {"BASH_ENV": "/nowhere", "A": "a 'b'\n"}
    result = sandbox.run_last(argv, timeout_seconds=60, env=env, output_limit=1000)
    assert len(result.stdout) == 1000
    assert result.stdout_cut > 2_900_000
    assert result.stdout.startswith(b"/nowhere a 'b'\n\n\0")
    assert result.stdout.endswith(b"\0end\n")
    sandbox.terminate()


def test_a_sandbox_that_is_ended_while_its_last_command_runs(sandbox: LocalSandbox) -> None:
    threading.Timer(0.5, sandbox.end, ["its backend was closed"]).start()
    with pytest.raises(SandboxDead, match="backend was closed"):
        last(sandbox, "sleep 60")


def test_bubblewrap_being_killed_while_the_last_command_runs(sandbox: LocalSandbox) -> None:
    first = sandbox.init_pid

    def kill() -> None:
        while (pid := sandbox.init_pid) == first:
            time.sleep(0.05)
        os.kill(parent(pid), signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(SandboxDead, match="bubblewrap was killed"):
        last(sandbox, "sleep 3")
    sandbox.terminate()


def test_a_last_command_in_a_large_template(tmp_path: Path) -> None:
    task = load_tasks(write_tiny(tmp_path / "dataset"))[0]
    task.setup_script.write_text(task.setup_script.read_text() + LARGE)
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    sandbox = backend.create_sandbox(backend.prepare(task).ref, workdir="/workspace/repo")
    assert bash(sandbox, "echo changed >bulk/1; rm bulk/2").returncode == 0
    assert last(sandbox, "cat bulk/1 bulk/3; ls bulk | wc -l").stdout == b"changed\n3\n699\n"
    backend.close()


def test_control_groups_of_version_2_below_a_group_of_our_own(tmp_path: Path) -> None:
    """On a folder that looks like one: what systemd hands to a user cannot be had everywhere."""
    (tmp_path / "cgroup.type").touch()
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.procs").write_text("1\n")
    groups = ControlGroups()
    groups._use_version_2(tmp_path)
    assert groups.limits == []  # somebody else's process is there
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    groups._use_version_2(tmp_path)
    assert groups.limits == ["memory", "processes"]
    assert (tmp_path / "cooperbench" / "cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    (made,) = groups.create(memory_bytes=1 << 30, processes=100)
    assert made.parent == tmp_path


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_made_for_both_machines(machine: str) -> None:
    assert len(seccomp_program(machine)) % 8 == 0
