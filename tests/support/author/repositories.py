"""Small repositories with a history, made by the tests."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}
PYTHON_BASE = {
    "shapes/__init__.py": "",
    "shapes/area.py": "def square(side):\n    return side * side\n",
    "shapes/names.py": "NAMES = ['square']\n",
    "tests/__init__.py": "",
    "tests/test_area.py": (
        "import unittest\n\nfrom shapes.area import square\n\n\n"
        "class Area(unittest.TestCase):\n"
        "    def test_square(self):\n        self.assertEqual(square(3), 9)\n"
    ),
    "CHANGELOG.md": "# Changes\n",
    "LICENSE": "MIT\n",
}


def python_feature(name: str, code: str, expected: str) -> dict[str, str]:
    """Files of a feature: a module with a function, its test, and a line of the release notes."""
    return {
        f"shapes/{name}.py": f"def {name}(size):\n    return {code}\n",
        f"tests/test_{name}.py": (
            f"import unittest\n\nfrom shapes.{name} import {name}\n\n\n"
            f"class {name.title()}(unittest.TestCase):\n"
            f"    def test_{name}(self):\n        self.assertEqual({name}(3), {expected})\n"
        ),
        "CHANGELOG.md": f"# Changes\n- {name}\n",
    }


class Repository:
    """A git repository that tests write commits to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *argv: str) -> str:
        result = subprocess.run(
            ["git", "-C", str(self.path), *argv],
            env={"PATH": os.environ["PATH"], **_ENVIRONMENT},
            check=True,
            capture_output=True,
            text=True,
        )
        return result.stdout.strip()

    def commit(self, message: str, files: Mapping[str, str | None]) -> str:
        """Write files (None removes one) and commit them; return the id of the commit."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_text(content)
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, message: str, files: Mapping[str, str | None]) -> str:
        """Commit files on a new branch of main, and return to main."""
        self.git("checkout", "-q", "-b", name, "main")
        commit = self.commit(message, files)
        self.git("checkout", "-q", "main")
        return commit


def python_repository(path: Path) -> Repository:
    """A library with unittest, and three features on branches."""
    repository = Repository(path)
    repository.commit("Start", PYTHON_BASE)
    repository.branch(
        "cube", "Add cubes\n\nWith a test.", python_feature("cube", "size ** 3", "27")
    )
    repository.branch("line", "Add lines", python_feature("line", "size", "3"))
    repository.branch("double", "Double sizes", python_feature("double", "size * 2", "6"))
    return repository
