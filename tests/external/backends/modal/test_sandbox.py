"""What sandboxes at Modal are asked to be, how they end, and what they cost."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from modal_proto import api_pb2

from cooperbench.backends.modal import ModalBackend
from cooperbench.errors import SandboxDead, UserError
from cooperbench.sandbox.contract import PROGRAMS_DIR, SandboxOptions
from cooperbench.sandbox.manager import open_sandbox
from tests.support.modal.plane import BARE_IMAGE, HOST_IMAGE
from tests.support.sandbox.programs import make_programs

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.sandbox.contract import NetworkPolicy
    from tests.support.modal.plane import Plane

_NETWORK = api_pb2.NetworkAccess


def test_what_modal_is_asked_for(plane: Plane, modal: ModalBackend) -> None:
    labels = {"run": "my run/ü", "pair": "tiny_task/task7 f1_f2", "agent": "agent1"}
    options = SandboxOptions("agent", "none", labels)
    sandbox = open_sandbox(modal, HOST_IMAGE, timeout_seconds=1234, options=options)
    (guest,) = plane.running()
    asked = guest.definition
    assert asked.timeout_secs == 1234
    assert asked.network_access.network_access_type == _NETWORK.BLOCKED
    assert (asked.resources.milli_cpu, asked.resources.milli_cpu_max) == (1000, 4000)
    assert (asked.resources.memory_mb, asked.resources.memory_mb_max) == (2048, 8192)
    assert guest.sandbox_id.endswith("v2")
    assert (guest.tags["cooperbench-run"], guest.tags["cooperbench-agent"]) == ("my-run-", "agent1")
    assert guest.tags["cooperbench-pair"] == "tiny_task-task7-f1_f2"
    assert all(len(value) <= 63 for value in guest.tags.values())
    # Neither a network nor an input to wait on.
    assert (
        sandbox.run(["bash", "-c", "cat; echo </dev/tcp/1.1.1.1/53"], timeout_seconds=20).returncode
        != 0
    )


def test_settings_reach_modal(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_MODAL_ALLOW_DOMAINS", "pypi.org, *.debian.org")
    backend = ModalBackend(cpu="2:8", memory="4g", region="us-east,eu-west", app="mine")
    public = SandboxOptions(network="public")
    backend.create_sandbox(HOST_IMAGE, timeout=10**6, options=public)
    (asked,) = (guest.definition for guest in plane.running())
    backend.close()
    assert plane.running() == []
    assert asked.timeout_secs == 24 * 3600
    assert asked.network_access.network_access_type == _NETWORK.ALLOWLIST
    assert list(asked.network_access.allowed_domains) == ["pypi.org", "*.debian.org"]
    assert list(asked.scheduler_placement.regions) == ["us-east", "eu-west"]
    assert (asked.resources.milli_cpu, asked.resources.milli_cpu_max) == (2000, 8000)
    assert (asked.resources.memory_mb, asked.resources.memory_mb_max) == (4096, 8192)


@pytest.mark.parametrize(
    ("network", "allow_domains", "access"),
    [
        ("none", "pypi.org", _NETWORK.BLOCKED),
        ("public", "pypi.org,*.debian.org", _NETWORK.ALLOWLIST),
        ("public", "", _NETWORK.OPEN),
    ],
)
def test_what_a_sandbox_reaches(
    plane: Plane,
    network: NetworkPolicy,
    allow_domains: str,
    access: api_pb2.NetworkAccess.NetworkAccessType.ValueType,
) -> None:
    backend = ModalBackend(allow_domains=allow_domains)
    backend.create_sandbox(HOST_IMAGE, options=SandboxOptions("agent", network))
    (asked,) = (guest.definition.network_access for guest in plane.running())
    backend.close()
    assert asked.network_access_type == access
    domains = ["pypi.org", "*.debian.org"] if access == _NETWORK.ALLOWLIST else []
    assert list(asked.allowed_domains) == domains
    assert not asked.allowed_cidrs


def test_a_gpu_means_the_older_kind_of_sandbox(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPERBENCH_MODAL_GPU", "A100-80GB:2")
    backend = ModalBackend()
    sandbox = backend.create_sandbox(HOST_IMAGE)
    (guest,) = plane.running()
    gpu = guest.definition.resources.gpu_config
    assert (gpu.gpu_type, gpu.count) == ("A100-80GB", 2)
    assert sandbox.run(["echo", "works"]).stdout == b"works\n"
    assert "cooperbench-session" in guest.tags
    assert backend.resource_use().count == 1
    backend.close()
    assert plane.running() == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cpu", "many", "1:4"),
        ("cpu", "4:1", "reserved:limit"),
        ("memory", "12", "2g"),
        ("gpu", "A100; rm", "T4"),
        ("images", "always", "auto, registry, build"),
        ("allow_domains", "http://pypi.org", "pypi.org"),
        ("colour", "red", "available: app, cpu"),
    ],
)
def test_a_setting_that_cannot_be(plane: Plane, name: str, value: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        ModalBackend(**{name: value})
    assert "\n" not in str(error.value)


def test_an_image_without_bash_is_refused_in_one_line(plane: Plane, modal: ModalBackend) -> None:
    with pytest.raises(
        UserError, match=r"^im-bare: .*bash is missing; images need sh, bash"
    ) as error:
        modal.create_sandbox(BARE_IMAGE)
    assert "\n" not in str(error.value)
    assert plane.running() == []


def test_the_end_of_a_lifetime_is_told_as_such(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE, timeout=2)
    with pytest.raises(SandboxDead, match="lifetime of 2 s"):
        sandbox.run(["sleep", "60"])
    with pytest.raises(SandboxDead, match="lifetime"):
        sandbox.run(["true"])


def test_streams(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    stream = sandbox.open_stream(
        ["bash", "-c", 'echo $PWD; read -r line; echo "<$line>"; echo end']
    )
    assert stream.stdout.readline() == b"/workspace\n"
    stream.stdin.write(b"one\n")
    assert stream.stdout.read() == b"<one>\nend\n"
    stream.close()
    # Closing ends the command and what it started.
    stream = sandbox.open_stream(["bash", "-c", "setsid sleep 987 & echo on; sleep 987"])
    assert stream.stdout.readline() == b"on\n"
    stream.close()
    assert sandbox.run(["bash", "-c", "pgrep -fx 'sleep 987' || echo none"]).stdout == b"none\n"


def test_a_stream_ends_with_its_sandbox(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    stream = sandbox.open_stream(["sleep", "600"])
    threading.Timer(0.3, sandbox.terminate).start()
    assert stream.stdout.read() == b""
    stream.close()


def test_large_files(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    data = os.urandom(3_000_000)
    sandbox.write_file("folder/large", data, 0o755)
    shown = sandbox.run(["bash", "-c", "stat -c '%s %a' folder/large; ls -A folder"])
    assert shown.stdout == b"3000000 755\nlarge\n"
    assert sandbox.read_file("folder/large") == data


def test_commands_cost_one_request_and_no_exec(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    before = plane.faults.requests.copy()
    for _ in range(10):
        sandbox.run(["true"])
    used = plane.faults.requests - before
    assert used == {"TaskExecStdinWrite": 10}


def test_fifty_sandboxes_at_once(plane: Plane, modal: ModalBackend) -> None:
    def work(number: int) -> bytes:
        sandbox = modal.create_sandbox(HOST_IMAGE, timeout=300)
        return sandbox.run(
            ["bash", "-c", f"echo {number} >own; cat own"], timeout_seconds=60
        ).stdout

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(work, range(50))) == [b"%d\n" % number for number in range(50)]
    assert len(plane.running()) == 50
    modal.close()
    assert plane.running() == []
    used = modal.resource_use()
    assert (used.count, used.what) == (50, "sandbox")
    # A physical core is two vCPUs.
    assert used.vcpu_seconds == pytest.approx(used.seconds * 2)
    assert used.gib_seconds == pytest.approx(used.seconds * 2)


def test_use_grows_while_a_sandbox_runs(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    first = modal.resource_use().seconds
    time.sleep(0.05)
    assert modal.resource_use().seconds > first
    sandbox.terminate()
    assert modal.resource_use() == modal.resource_use()


def test_programs_are_uploaded_and_mounted(
    plane: Plane, modal: ModalBackend, tmp_path: Path
) -> None:
    options = SandboxOptions("agent", programs=make_programs(tmp_path / "programs"))
    open_sandbox(modal, HOST_IMAGE, timeout_seconds=300, options=options)
    (guest,) = plane.running()
    files = [file for mount in guest.definition.mount_ids for file in plane.mounts[mount]]
    assert [(file.filename, file.mode & 0o777) for file in files] == [
        (f"{PROGRAMS_DIR}/bin/greet", 0o755)
    ]
