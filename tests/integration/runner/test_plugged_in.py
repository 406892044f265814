"""What other people bring: backends with three methods, by each of the documented ways; agents of their own."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.errors import InfraError
from cooperbench.eval import backends
from tests.support.runner.helpers import run_tiny
from tests.support.tiny import golden, write_script

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession
    from cooperbench.sandbox.contract import EvalBackend


@dataclass
class TheirResult:
    returncode: int
    out: str
    err: str

    def stdout_read(self) -> str:
        return self.out

    def stderr_read(self) -> str:
        return self.err


class TheirSandbox:
    """Only `exec` and `terminate`; underneath a local sandbox, since something must isolate it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def exec(self, *args: str) -> TheirResult:
        result = self._inner.exec(*args)
        return TheirResult(result.returncode, result.stdout_read(), result.stderr_read())

    def terminate(self) -> None:
        self._inner.terminate()


class TheirBackend:
    """Twenty lines, as in the documentation: no capabilities, no preparation."""

    made: list[str] = []  # noqa: RUF012

    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> TheirSandbox:
        self.made.append(image)
        dataset = os.environ["THEIR_DATASET"]
        return TheirSandbox(
            LocalBackend(dataset_dir=Path(dataset)).create_sandbox(image, timeout, workdir)
        )


def run_on_theirs(tmp_path: Path, name: str) -> None:
    (tmp_path / "golden1.patch").write_text(golden(1))
    (tmp_path / "golden2.patch").write_text(golden(2))
    script = write_script(
        tmp_path / "script.yaml",
        {
            1: [{"send": "hello"}, {"apply": "golden1.patch"}],
            2: [
                {"wait": {"for": "hello", "seconds": 30}},
                {"run": "git log --oneline | wc -l"},
                {"apply": "golden2.patch"},
            ],
        },
    )
    TheirBackend.made.clear()
    left = run_tiny(tmp_path, "scripted", agent_config=str(script), backend=name)
    assert left.evaluation["overall_success"] is True
    assert set(TheirBackend.made) == {"cooperbench/tiny_task:task7"}
    assert [message["message"] for message in left.json("conversation.json")["messages"]] == [
        "hello"
    ]
    assert left.observations("agent2")[0].strip() == "1"


@pytest.fixture(autouse=True)
def _their_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_DATASET", str(tmp_path / "data"))


def test_a_registered_backend_runs_agents_and_evaluation(tmp_path: Path) -> None:
    backends.register("theirs", TheirBackend)
    run_on_theirs(tmp_path, "theirs")


def test_replacing_get_backend_as_documented_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = backends.get_backend

    def custom(name: str) -> EvalBackend:
        return TheirBackend() if name == "my_backend" else original(name)

    monkeypatch.setattr(backends, "get_backend", custom)
    run_on_theirs(tmp_path, "my_backend")


def test_a_backend_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[cooperbench.backends]\npackaged = {__name__}:TheirBackend\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    run_on_theirs(tmp_path, "packaged")


class FlakyAgent:
    """Fails through nobody's fault the first two times, in each pair."""

    uses_model = False
    failures: dict[str, int] = {}  # noqa: RUF012

    def run(self, session: AgentSession) -> None:
        seen = self.failures.setdefault(session.slot.agent_id, 0)
        if seen < 2:
            self.failures[session.slot.agent_id] += 1
            # As the harness's own code does when a sandbox or the gateway fails.
            raise session.remember(InfraError("the provider is away"))
        session.execute("echo done >done.txt")


class BrokenAgent:
    uses_model = False

    def run(self, session: AgentSession) -> None:
        raise KeyError("a bug of theirs")


def test_infrastructure_errors_are_tried_again_and_attempts_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cooperbench.retry

    monkeypatch.setattr(cooperbench.retry, "FIRST_PAUSE_SECONDS", 0.01)
    FlakyAgent.failures = {}
    left = run_tiny(tmp_path, f"{__name__}:FlakyAgent", setting="solo", auto_eval=False)
    assert left.result["attempt"] == 3
    reasons = [attempt["error"] for attempt in left.result["earlier_attempts"]]
    assert reasons == ["the provider is away"] * 2
    kept = tmp_path / "logs/r/attempts/solo/tiny_task/7/f1_f2"
    assert sorted(entry.name for entry in kept.iterdir()) == ["001", "002"]


def test_an_agent_that_crashes_is_scored_and_not_run_again(tmp_path: Path) -> None:
    left = run_tiny(tmp_path, f"{__name__}:BrokenAgent")
    assert left.result["status"] == "completed"
    assert "KeyError" in left.result["agents"]["agent1"]["error"]
    assert left.evaluation["overall_success"] is False
    assert "a bug of theirs" in (tmp_path / "logs/r/errors.log").read_text()
    first = left.result
    assert run_tiny(tmp_path, f"{__name__}:BrokenAgent").result["ended_at"] == first["ended_at"]


def test_attempts_are_counted_over_several_commands(tmp_path: Path) -> None:
    run_tiny(tmp_path, "nop", setting="solo", auto_eval=False)
    left = run_tiny(tmp_path, "nop", setting="solo", auto_eval=False, force=True)
    assert left.result["attempt"] == 2
    assert [attempt["status"] for attempt in left.result["earlier_attempts"]] == ["completed"]


def test_nothing_stays_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run_tiny(tmp_path, "oracle")
    assert list(temporary.iterdir()) == []
