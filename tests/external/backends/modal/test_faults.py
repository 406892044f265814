"""What happens when something goes wrong at Modal: what passes is tried again, what is lost is said, nothing is scored."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from grpclib import Status as Reply
from modal_proto import api_pb2

from cooperbench import retry
from cooperbench.backends.modal import ModalBackend, connection
from cooperbench.doctor.checks import Status, run_checks
from cooperbench.errors import InfraError, SandboxDead, SandboxDestroyed, UserError
from tests.support.modal.plane import HOST_IMAGE

if TYPE_CHECKING:
    from tests.support.modal.plane import Plane


def test_an_outage_while_a_sandbox_is_made_passes(plane: Plane, modal: ModalBackend) -> None:
    plane.faults.add("SandboxCreateV2", Reply.UNAVAILABLE, times=6)
    sandbox = modal.create_sandbox(HOST_IMAGE)
    assert sandbox.run(["echo", "ok"]).stdout == b"ok\n"
    assert plane.faults.requests["SandboxCreateV2"] > 6
    assert [guest.sandbox_id for guest in plane.running()] == [sandbox.name]


def test_an_answer_that_was_lost_does_not_leave_a_second_sandbox(
    plane: Plane, modal: ModalBackend
) -> None:
    plane.faults.add("SandboxCreateV2", Reply.UNAVAILABLE, times=1, after=True)
    sandbox = modal.create_sandbox(HOST_IMAGE)
    assert [guest.sandbox_id for guest in plane.running()] == [sandbox.name]
    assert sandbox.run(["echo", "ok"]).stdout == b"ok\n"


def test_many_that_are_rate_limited_are_all_made_in_the_end(
    plane: Plane, modal: ModalBackend
) -> None:
    plane.faults.most_creating = 3
    plane.faults.delays["SandboxCreateV2"] = 0.01
    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(lambda _: modal.create_sandbox(HOST_IMAGE), range(12)))
    assert len(plane.running()) == len(made) == 12
    assert plane.faults.refused > 0


def test_a_slow_start_is_waited_for(plane: Plane, modal: ModalBackend) -> None:
    plane.faults.delays["SandboxCreateV2"] = 1.0
    plane.faults.delays["TaskExecStart"] = 1.0
    assert modal.create_sandbox(HOST_IMAGE).run(["echo", "ok"]).stdout == b"ok\n"


def test_streams_that_are_cut_are_read_on_from_where_they_were(
    plane: Plane, modal: ModalBackend
) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    plane.faults.cut_after_bytes = 100_000
    result = sandbox.run(
        ["bash", "-c", "for i in {1..60000}; do echo line $i; done"], timeout_seconds=60
    )
    assert plane.faults.cuts > 3
    assert result.stdout.decode().splitlines() == [f"line {number}" for number in range(1, 60001)]


def test_requests_that_fail_now_and_then_are_made_again(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    plane.faults.add("TaskExecStdinWrite", Reply.UNAVAILABLE, times=3, after=True)
    assert sandbox.run(["bash", "-c", "echo once >>file; cat file"]).stdout == b"once\n"
    plane.faults.add("TaskExecStart", Reply.INTERNAL, times=3)
    stream = sandbox.open_stream(["echo", "ok"])
    assert stream.stdout.read() == b"ok\n"
    stream.close()


def test_what_modal_does_not_want_just_now_is_asked_for_again(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first request of a run to its last: else a run does not begin, or a sandbox goes on."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.05)
    requests = ("AppGetOrCreate", "SandboxListV2", "TaskExecStart", "SandboxTerminateV2")
    for name in requests:
        plane.faults.add(name, Reply.RESOURCE_EXHAUSTED, times=2)
    backend = ModalBackend()
    sandbox = backend.create_sandbox(HOST_IMAGE)
    assert sandbox.run(["echo", "ok"]).stdout == b"ok\n"
    sandbox.terminate()
    assert plane.running() == []
    assert all(plane.faults.requests[name] == 3 for name in requests)
    backend.create_sandbox(HOST_IMAGE)
    plane.faults.add("SandboxTerminateV2", Reply.UNAVAILABLE, times=10)
    backend.close()
    assert plane.running() == []


def test_run_starts_if_leftovers_cannot_be_listed(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)
    plane.faults.add("SandboxListV2", Reply.UNAVAILABLE, times=10**6, message="no lists today")
    backend = ModalBackend()
    sandbox = backend.create_sandbox(HOST_IMAGE)
    assert "no lists today" in caplog.text
    sandbox.terminate()
    plane.faults.clear()
    backend.close()


def test_output_that_is_lost_for_good_is_nobodys_result(plane: Plane, modal: ModalBackend) -> None:
    """Not an exit code either: the command may have done its work."""
    sandbox = modal.create_sandbox(HOST_IMAGE)
    plane.faults.add("TaskExecStdinWrite", Reply.DATA_LOSS, times=1000)
    with pytest.raises(InfraError) as error:
        sandbox.run(["true"])
    assert not isinstance(error.value, SandboxDead)


@pytest.mark.parametrize(
    ("status", "words", "destroyed"),
    [
        ("TERMINATED", "terminated at Modal", False),
        ("INTERNAL_FAILURE", "Modal ended it", False),
        ("MEMORY_MANAGER_EVICTION", "Modal ended it", False),
        ("KERNEL_OOM_KILL", "kernel oom kill", True),
        ("FAILURE", "its processes were killed", True),
    ],
)
def test_a_sandbox_that_is_lost_in_mid_command(
    plane: Plane, modal: ModalBackend, status: str, words: str, destroyed: bool
) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    (guest,) = plane.running()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sandbox.run, ["bash", "-c", "touch started; sleep 600"])
        sandbox.run(["bash", "-c", "while [ ! -e started ]; do sleep 0.02; done"])
        guest.finish(api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}"), 137)
        with pytest.raises(SandboxDead, match=words) as error:
            waiting.result(60)
    assert isinstance(error.value, SandboxDestroyed) is destroyed
    with pytest.raises(SandboxDead):
        sandbox.write_file("x", b"")
    guest.terminate()
    sandbox.terminate()


def test_a_command_that_kills_its_own_shell_is_a_result(plane: Plane, modal: ModalBackend) -> None:
    sandbox = modal.create_sandbox(HOST_IMAGE)
    result = sandbox.run(["bash", "-c", "pkill -9 -f cooperbench/channels; sleep 5"])
    assert result.returncode == 137
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_modal_that_stays_away_is_an_infrastructure_error(
    plane: Plane, modal: ModalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CREATE_RETRY_SECONDS", 2.0)
    plane.faults.add("SandboxCreateV2", Reply.UNAVAILABLE, times=10**6, message="nobody home")
    with pytest.raises(InfraError, match="nobody home"):
        modal.create_sandbox(HOST_IMAGE)


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (
            Reply.RESOURCE_EXHAUSTED,
            "Workspace spend limit reached",
            "quota.*modal.com/settings/usage",
        ),
        (Reply.PERMISSION_DENIED, "read-only token", "Modal rejects it: read-only token"),
        (Reply.INVALID_ARGUMENT, "no such region", "Modal rejects it: no such region"),
    ],
)
def test_what_the_user_must_mend_is_said_in_one_line(
    plane: Plane, modal: ModalBackend, status: Reply, message: str, words: str
) -> None:
    plane.faults.add("SandboxCreateV2", status, times=1, message=message)
    with pytest.raises(UserError, match=words) as error:
        modal.create_sandbox(HOST_IMAGE)
    assert "\n" not in str(error.value)


def test_a_bad_token(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-wrong")
    with pytest.raises(
        UserError, match=r"rejects the token: modal token new.*--backend local"
    ) as error:
        ModalBackend().check()
    assert "\n" not in str(error.value)


def test_the_wrong_environment(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_ENVIRONMENT", "nowhere")
    with pytest.raises(UserError, match=r"Environment 'nowhere' not found.*modal environment list"):
        ModalBackend().check()


def test_the_check_asks_modal_also_without_asserts(plane: Plane) -> None:
    """In a process of its own: `python -O` leaves out asserts."""
    script = "from cooperbench.backends.modal import ModalBackend; ModalBackend().check()"
    subprocess.run([sys.executable, "-O", "-c", script], check=True, timeout=60)
    assert plane.faults.requests["AppGetOrCreate"] == 1


def test_the_doctor_asks_modal(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(one for one in run_checks() if one.name == "backend modal")
    assert found.status is Status.OK
    assert "the token is good, app cooperbench" in found.detail
    monkeypatch.setenv("MODAL_ENVIRONMENT", "nowhere")
    found = next(one for one in run_checks() if one.name == "backend modal")
    assert (found.status, "modal environment list" in found.fix) == (Status.MISSING, True)


def test_no_token(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    with pytest.raises(
        UserError, match=r"modal token new.*--backend local.*--backend docker.*Token missing"
    ):
        ModalBackend().check()


def test_not_installed(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(UserError, match=r"pip install 'cooperbench\[modal\]'.*modal token new"):
        ModalBackend()


def test_waiting_in_a_rate_limit_ends(
    plane: Plane, modal: ModalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CREATE_RETRY_SECONDS", 1.0)
    plane.faults.most_creating = 0
    with pytest.raises(InfraError, match=r"rate limited by Modal.*-c"):
        modal.create_sandbox(HOST_IMAGE)
