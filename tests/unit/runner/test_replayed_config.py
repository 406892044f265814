"""A replayed run may come from somebody else: it names neither code to load nor files to read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.runner.config import RunConfig, make_config
from cooperbench.storage import write_json
from tests.support.tiny import write_tiny

EVIL_MODULE = """
from pathlib import Path
Path({marker!r}).touch()
class Evil:
    uses_model = False
    def run(self, session): ...
"""


class Recorded:
    """A recorded run whose config.json somebody else wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "code of the run was here"
        self.data = write_tiny(folder / "data")
        self.logs = folder / "logs"

    def write(self, agent: str, **changes: Any) -> None:
        config = RunConfig(
            run_name="foreign", dataset_dir=self.data, logs_dir=self.logs, setting="coop", agent="nop",
            model=None, backend="local",
        )  # fmt: skip
        config.save()
        content = {"agent": agent, "model_name": "openai/x", **changes}
        saved = self.logs / "foreign" / "config.json"
        write_json(saved, {**json.loads(saved.read_text()), **content})

    def replay(self, **options: Any) -> RunConfig:
        values: dict[str, Any] = {"agent": "replay_model", "replay_from": "foreign", **options}
        defaults = {"run_name": "again", "dataset_dir": self.data, "logs_dir": self.logs}
        return make_config(
            {**defaults, "setting": "coop", "backend": "local", "model": None, **values}
        )


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture
def evil_agent(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an agent in a module that shows whether it was imported."""
    monkeypatch.chdir(recorded.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = EVIL_MODULE.format(marker=str(recorded.marker))
    Path("evil_module_of_a_run.py").write_text(source)
    monkeypatch.delitem(sys.modules, "evil_module_of_a_run", raising=False)
    return "evil_module_of_a_run:Evil"


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_code_that_a_run_names_is_not_imported(
    options: list[str], recorded: Recorded, evil_agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write(evil_agent)
    argv = ["run", "-n", "again", "-a", "replay_model", "--from", "foreign", "--backend", "local"]
    argv += ["--dataset-dir", str(recorded.data), "--log-dir", str(recorded.logs), *options]
    assert main(argv) == 2
    assert not recorded.marker.exists()
    assert "--replay-agent" in capsys.readouterr().err
    assert not (recorded.logs / "again").exists()


def test_a_program_that_a_run_names_is_not_used(recorded: Recorded) -> None:
    recorded.write(f"nop,{recorded.folder}/program")
    with pytest.raises(UserError, match="does not name code to load"):
        recorded.replay()


def test_an_agent_that_the_user_names_is_used(recorded: Recorded, evil_agent: str) -> None:
    recorded.write(evil_agent)
    assert recorded.replay(replay_agent=evil_agent).agents == (evil_agent,)
    assert recorded.replay(replay_agent="nop").agents == ("nop",)
    with pytest.raises(UserError, match="--replay-agent is for -a replay_model"):
        recorded.replay(agent="nop", replay_from=None, replay_agent="nop")


def test_registered_agents_are_replayed(
    recorded: Recorded, evil_agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that the user's own modules register."""
    recorded.write("nop,mini_swe_agent")
    assert recorded.replay().agents == ("nop", "mini_swe_agent")
    Path("own_module_of_a_user.py").write_text(
        "from cooperbench.agents import registry\n"
        "from cooperbench.agents.base import NopAgent\n"
        "registry.register('own_agent', NopAgent)\n"
    )
    monkeypatch.setattr("cooperbench.agents.registry._registered", {})
    monkeypatch.setenv("COOPERBENCH_EXTERNAL_AGENTS", "own_module_of_a_user")
    recorded.write("own_agent")
    assert recorded.replay().agents == ("own_agent",)


def test_an_agent_config_that_a_run_names_is_not_read(recorded: Recorded) -> None:
    """Templates in it would be code: mini-swe-agent renders them."""
    config = recorded.folder / "evil.yaml"
    config.write_text("agent: {}\n")
    call = {"agent_config": str(config)}
    recorded.write("nop", agent_config_sha256="0" * 64, invocations=[call])
    with pytest.raises(UserError, match=r"evil\.yaml\), which is not read without your consent"):
        recorded.replay()
    own = recorded.folder / "own.yaml"
    own.touch()
    assert recorded.replay(agent_config=str(own)).agent_config_paths == (own,)
