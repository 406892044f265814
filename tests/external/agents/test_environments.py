"""Frameworks in environments of their own: made whole or not at all, replaced in one step, removed without a rest."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cooperbench.agents.environments import (
    FRAMEWORKS,
    Framework,
    environments_dir,
    find_environment,
    find_python,
    get_environment,
    get_framework,
    install,
    remove,
)
from cooperbench.cli import main
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
TOY = Framework("toy", "toy-framework", (HERE,), (), source_folders=("tools",))

BUILD = """
import zipfile

def build_wheel(folder, settings=None, metadata=None):
    name = "toy_framework-1.2.3-py3-none-any.whl"
    about = "toy_framework-1.2.3.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("toy_framework.py", "answer = 42\\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: toy-framework\\nVersion: 1.2.3\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree that needs no network to be installed."""
    folder = tmp_path / "toy"
    (folder / "tools").mkdir(parents=True)
    (folder / "tools" / "hammer").write_text("a tool")
    (folder / "build_toy.py").write_text(BUILD)
    (folder / "pyproject.toml").write_text(
        textwrap.dedent("""\
            [build-system]
            requires = []
            build-backend = "build_toy"
            backend-path = ["."]
            """)
    )
    return folder


def _install(source: str | None, python: Path | None = None) -> None:
    install(TOY, source=source, python=python, say=lambda line: None)


def test_an_environment_is_made_used_replaced_and_removed(source: Path) -> None:
    with pytest.raises(UserError, match="cooperbench agents install toy --from"):
        get_environment(TOY)
    _install(str(source))
    first = get_environment(TOY)
    assert first.version == "1.2.3"
    assert (first.source / "tools" / "hammer").read_text() == "a tool"
    said = subprocess.run(
        [first.python, "-c", "import toy_framework; print(toy_framework.answer)"],
        capture_output=True,
        check=True,
    )
    assert said.stdout == b"42\n"

    (source / "tools" / "hammer").write_text("a better tool")
    _install(str(source))
    second = get_environment(TOY)
    assert (second.source / "tools" / "hammer").read_text() == "a better tool"

    assert remove(TOY)
    assert find_environment(TOY) is None
    assert list(environments_dir().iterdir()) == []
    assert not remove(TOY)


def test_what_cannot_be_installed_leaves_what_was_there(source: Path) -> None:
    _install(str(source))
    (source / "build_toy.py").write_text(
        "def build_wheel(*_): raise SystemExit('no wheel today')\n"
    )
    with pytest.raises(UserError, match="the installation failed") as caught:
        _install(str(source))
    assert "\n" not in str(caught.value)
    assert get_environment(TOY).version == "1.2.3"
    assert [path.name for path in environments_dir().iterdir()] == ["toy"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, "has no releases: name its source tree or git URL"),
        ("absent", "is not a source tree of toy: it has no"),
        (".", "is not a source tree of toy: it has no"),
        ("file:///nonexistent/toy.git", "cannot be cloned"),
    ],
)
def test_a_source_that_is_none(tmp_path: Path, place: str | None, said: str) -> None:
    if place is not None and "://" not in place:
        place = str(tmp_path / place)
    with pytest.raises(UserError, match=said):
        _install(place)
    assert find_environment(TOY) is None


def test_releases_are_not_taken_from_elsewhere(source: Path) -> None:
    with pytest.raises(UserError, match="is installed from its releases; omit --from"):
        install(get_framework("openhands"), source=str(source), python=None, say=print)


def test_a_python_that_suits_is_found_and_another_refused(tmp_path: Path) -> None:
    found = find_python(TOY, None)
    assert find_python(TOY, found) == found
    other = replace(TOY, pythons=("2.9", "2.8"))
    with pytest.raises(UserError, match=r"toy needs Python 2\.9 or 2\.8 .*pyenv install 2\.9"):
        find_python(other, None)
    for path in (found, tmp_path / "absent"):
        with pytest.raises(
            UserError, match=r"is not Python 2\.9 or 2\.8 with venv, which toy needs"
        ):
            find_python(other, path)


def test_a_command_line_agent_is_installed_from_npm() -> None:
    small = Framework("small", npm="is-number@{version}", version="7.0.0")
    install(small, source=None, python=None, say=lambda line: None)
    made = get_environment(small)
    assert (made.version, made.description["python"]) == ("7.0.0", None)
    modules = made.programs / "node_modules"
    assert (modules / "is-number" / "index.js").is_file()
    (node,) = modules.glob("node-linux-*/bin/node")
    assert subprocess.run([node, "--version"], capture_output=True, check=True).stdout.startswith(
        b"v22."
    )
    newer = replace(small, version="7.0.1")
    said = r"small 7\.0\.0 is installed, but this version of CooperBench needs 7\.0\.1: cooperbench agents install small"
    with pytest.raises(UserError, match=said):
        get_environment(newer)


def test_npm_that_is_not_there_or_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = Framework("small", npm="is-number@{version}", version="0.0.0-none")
    with pytest.raises(UserError, match="the installation failed") as caught:
        install(broken, source=None, python=None, say=lambda line: None)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="omit --python"):
        install(broken, source=None, python=tmp_path / "python", say=print)
    (tmp_path / "rm").symlink_to("/bin/rm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"needs npm, which is not installed; see https://nodejs\.org"
    ):
        install(broken, source=None, python=None, say=print)
    assert find_environment(broken) is None


def test_the_command_lists_and_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "list", "--json"]) == 0
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(FRAMEWORKS) < set(rows)
    assert rows["oracle"]["installed"]
    assert not rows["openhands"]["installed"]
    assert rows["openhands"]["install"] == "cooperbench agents install openhands"

    assert main(["agents", "install", "nope"]) == 2
    assert (
        "no framework 'nope'; available: openhands, swe_agent, claude_code"
        in capsys.readouterr().err
    )
    assert main(["agents", "remove", "openhands"]) == 0
    assert "was not installed" in capsys.readouterr().out
