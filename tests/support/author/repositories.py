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


def mixed_history(path: Path) -> Repository:
    """A library with unittest whose main line has features, and changes that are not."""
    repository = Repository(path)
    repository.commit("Start", PYTHON_BASE)
    repository.commit("Add cubes (#1)", python_feature("cube", "size ** 3", "27"))
    repository.commit("Fix a typo", {"README.md": "Shapes\n"})
    repository.git("checkout", "-q", "-b", "lines")
    line = python_feature("line", "size", "3")
    repository.commit("Add lines", {"shapes/line.py": line["shapes/line.py"]})
    repository.commit("Test lines", {"tests/test_line.py": line["tests/test_line.py"]})
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "Merge branch 'lines'", "lines")
    repository.commit("Double sizes (#3)", python_feature("double", "size * 2", "6"))
    # Its test passes without it.
    renamed = {"shapes/names.py": "NAMES = ['square', 'cube']\nMORE = []\n"}
    test = PYTHON_BASE["tests/test_area.py"].replace("test_square", "test_squares")
    repository.commit("Rename things", {**renamed, "tests/test_area.py": test})
    # It builds on cubes.
    module = "from shapes.cube import cube\n\n\ndef tower(size):\n    return 2 * cube(size)\n"
    tower = python_feature("tower", "", "54")
    repository.commit("Add towers", {**tower, "shapes/tower.py": module})
    return repository


JAVASCRIPT_BASE = {
    "package.json": (
        '{"name": "shapes", "version": "1.0.0", "license": "MIT",'
        ' "scripts": {"test": "node --test"}}\n'
    ),
    "area.js": "exports.square = (side) => side * side\n",
    "area.test.js": (
        "const test = require('node:test')\nconst assert = require('node:assert')\n"
        "const { square } = require('./area')\n\n"
        "test('square', () => { assert.strictEqual(square(3), 9) })\n"
    ),
    ".gitignore": "node_modules\n",
}


def javascript_feature(name: str, code: str, expected: str) -> dict[str, str]:
    """Files of a feature: a module with a function, and its test."""
    return {
        f"{name}.js": f"exports.{name} = (size) => {{\n  return {code}\n}}\n",
        f"{name}.test.js": (
            "const test = require('node:test')\nconst assert = require('node:assert')\n"
            f"const {{ {name} }} = require('./{name}')\n\n"
            f"test('{name}', () => {{ assert.strictEqual({name}(3), {expected}) }})\n"
        ),
    }


RUST_BASE = {
    "Cargo.toml": (
        '[package]\nname = "shapes"\nversion = "0.1.0"\nedition = "2021"\nlicense = "MIT"\n'
    ),
    "Cargo.lock": 'version = 3\n\n[[package]]\nname = "shapes"\nversion = "0.1.0"\n',
    "src/lib.rs": "pub fn square(side: i64) -> i64 {\n    side * side\n}\n",
    "tests/area.rs": (
        "use shapes::square;\n\n#[test]\nfn squares() {\n    assert_eq!(square(3), 9);\n}\n"
    ),
    ".gitignore": "target\n",
}


def rust_features() -> list[dict[str, str]]:
    """Files of two features: each a function of the library, and its test."""
    square = RUST_BASE["src/lib.rs"]
    cube = "\npub fn cube(side: i64) -> i64 {\n    side * square(side)\n}\n"
    line = "pub fn line(size: i64) -> i64 {\n    size\n}\n\n"
    test = (
        "use shapes::{name};\n\n#[test]\nfn {name}s() {{\n    assert_eq!({name}(3), {value});\n}}\n"
    )
    return [
        {"src/lib.rs": square + cube, "tests/cube.rs": test.format(name="cube", value=27)},
        {"src/lib.rs": line + square + cube, "tests/line.rs": test.format(name="line", value=3)},
    ]


GO_BASE = {
    "go.mod": "module example.invalid/shapes\n\ngo 1.21\n",
    "area.go": "package shapes\n\nfunc Square(side int) int {\n\treturn side * side\n}\n",
    "area_test.go": (
        'package shapes\n\nimport "testing"\n\nfunc TestSquare(t *testing.T) {\n'
        "\tif Square(3) != 9 {\n\t\tt.Fatal(Square(3))\n\t}\n}\n"
    ),
    "LICENSE": "MIT\n",
}


def go_feature(name: str, code: str, expected: str) -> dict[str, str]:
    """Files of a feature: a function in a file of its own, and its test."""
    return {
        f"{name.lower()}.go": (
            f"package shapes\n\nfunc {name}(size int) int {{\n\treturn {code}\n}}\n"
        ),
        f"{name.lower()}_test.go": (
            f'package shapes\n\nimport "testing"\n\nfunc Test{name}(t *testing.T) {{\n'
            f"\tif {name}(3) != {expected} {{\n\t\tt.Fatal({name}(3))\n\t}}\n}}\n"
        ),
    }
