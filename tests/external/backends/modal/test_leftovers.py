"""Whatever way a harness ends, nothing of it goes on; and nothing of anybody else's is touched."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from modal_proto import api_pb2

from cooperbench.backends.modal import ModalBackend
from cooperbench.backends.ownership import OWNER_LABEL, read_owner, this_owner
from cooperbench.cli import main
from tests.support.modal.plane import HOST_IMAGE
from tests.support.paths import SUPPORT

if TYPE_CHECKING:
    import pytest

    from tests.support.modal.plane import Plane


def start_harness() -> tuple[subprocess.Popen[str], set[str]]:
    """A harness in its own process, with two sandboxes open."""
    script = str(SUPPORT / "modal" / "killed_harness.py")
    process = subprocess.Popen(
        [sys.executable, script, HOST_IMAGE], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, {process.stdout.readline().strip() for _ in range(2)}


def end_harness(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    with process:
        return process.wait(60)


def ids(plane: Plane) -> set[str]:
    return {guest.sandbox_id for guest in plane.running()}


def foreign(plane: Plane, **tags: str) -> str:
    """A sandbox that no process of ours has made."""
    listed = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
    return plane.new_guest(
        api_pb2.Sandbox(image_id=HOST_IMAGE, timeout_secs=300), listed, old=False
    ).sandbox_id


def test_what_a_killed_harness_left_is_ended_at_the_next_start(plane: Plane) -> None:
    somebodys = foreign(plane, somebody="else")
    process, left = start_harness()
    end_harness(process, signal.SIGKILL)
    assert left | {somebodys} == ids(plane)
    starting = ModalBackend()
    mine = starting.create_sandbox(HOST_IMAGE)
    assert ids(plane) == {somebodys, mine.name}
    starting.close()
    assert ids(plane) == {somebodys}


def test_an_interrupted_harness_leaves_nothing(plane: Plane) -> None:
    process, left = start_harness()
    assert left == ids(plane)
    assert end_harness(process, signal.SIGINT) != 0
    assert ids(plane) == set()


def test_the_command_clean_tells_what_it_ended(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = foreign(plane, **this_owner()._replace(pid=2**22 + 1, start="1").labels)
    assert main(["clean", "--backend", "modal"]) == 0
    assert dead in capsys.readouterr().out
    assert ids(plane) == set()


def test_only_dead_owners_of_this_machine_lose_their_sandboxes(plane: Plane) -> None:
    me = this_owner()
    gone = me._replace(pid=2**22 + 1, start="1")
    owners = {
        "alive": me,
        "dead": gone,
        "same pid, other process": me._replace(start="1"),
        "other machine": gone._replace(machine="another"),
        "other user": gone._replace(user="4242"),
        "other namespace": gone._replace(namespace="1"),
    }
    made = {name: foreign(plane, **owner.labels) for name, owner in owners.items()}
    made["nonsense"] = foreign(plane, **{**gone.labels, OWNER_LABEL: "x"})
    assert set(ModalBackend.clean()) == {made["dead"], made["same pid, other process"]}
    assert ids(plane) == set(made.values()) - {made["dead"], made["same pid, other process"]}
    assert read_owner(me.labels[OWNER_LABEL]) == me
    assert ModalBackend.clean() == []


def test_what_a_backend_lost_sight_of_ends_when_it_is_closed(
    plane: Plane, modal: ModalBackend
) -> None:
    modal.create_sandbox(HOST_IMAGE)
    (guest,) = plane.running()
    lost = foreign(plane, **guest.tags)
    modal.close()
    assert lost not in ids(plane)
    assert ids(plane) == set()
