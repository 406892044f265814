"""Temporary folders of killed processes go; everything else stays."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from cooperbench.temporary import owned_prefix, remove_abandoned, remove_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def dead_prefix() -> str:
    """Of a process that has just ended."""
    code = "from cooperbench.temporary import owned_prefix; print(owned_prefix('merge'))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_only_the_folders_of_the_dead_are_removed(temporary: Path) -> None:
    prefix = dead_prefix()
    *rest, namespace, _ = prefix.split("-")
    names = {
        "dead": f"{prefix}abcd1234",
        "alive": f"{owned_prefix('merge')}abcd1234",
        "of a namespace that cannot be seen": f"{'-'.join([*rest, namespace + '0'])}-abcd1234",
        "without an owner": "cooperbench-merge-abcd1234",
        "somebody else's": f"other-{prefix}abcd1234",
    }
    for name in names.values():
        (temporary / name / "store").mkdir(parents=True)
    (temporary / f"{prefix}a_link").symlink_to(temporary / names["alive"])
    (temporary / f"{prefix}a_file").touch()
    removed = remove_abandoned()
    assert [path for path in removed if path.parent == temporary] == [temporary / names["dead"]]
    left = {label for label, name in names.items() if (temporary / name / "store").is_dir()}
    assert left == set(names) - {"dead"}


def test_a_closed_and_deep_folder_goes_whole(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "closed"
    inner.mkdir(parents=True)
    subprocess.run(["mkdir", "-p", "/".join(["a"] * 1500)], cwd=inner, check=True)
    (tmp_path / "kept").write_text("kept")
    (inner / "link").symlink_to(tmp_path)
    inner.chmod(0)
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
