"""Tasks like the published ones: packages are in the image, and the runner installs all the same, on every call.

One of each tool: `pip`, `uv` and `pnpm` ask a package index each time; `go` and `rust` need no network. Every repository has two
functions that give 0. Feature 1 is the area, feature 2 the perimeter; either's tests pass without the other. Those in Python have
upstream's later commits, with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import load_tasks
from tests.support.dataset.factory import write_dataset
from tests.support.published.images import ASKING
from tests.support.published.index import integrity
from tests.support.published.packages import NPM, PIP
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cooperbench.models import Task

TASK_ID = 1
HOLE = "return 0"
FEATURES = {1: ("area", "width * height", 6), 2: ("perimeter", "2 * (width + height)", 10)}
"""Name, what is returned instead of 0, and its value for 2 x 3."""

DOCKERFILE = """ARG BASE_IMAGE=none
FROM ${BASE_IMAGE}
ARGUMENTS
TOOLS
COPY base /workspace/repo
COPY setup.sh runner.sh /usr/local/bin/
WORKDIR /workspace/repo
RUN bash /usr/local/bin/setup.sh && rm /usr/local/bin/setup.sh
"""
SETUP = """#!/bin/bash
set -e
cd /workspace/repo
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
git init -q -b main .
git add -A
git -c user.name=t -c user.email=t@t.invalid commit -qm "The past"
LATER
INSTALL
rm -rf /root/.npm /root/.cache/pip /root/.cache/uv /root/.cache/pnpm /root/.local/share/pnpm
"""
RUNNER = """#!/bin/bash
# runner.sh TESTS [FEATURE]: names of patches in /patches
set -e
TEST_PATCH=$1
FEATURE_PATCH=$2
cd /workspace/repo

cleanup() {
    echo "Cleaning up repository..."
    git reset -q --hard HEAD
    git clean -qfdx
    echo "Repository cleaned up."
}
trap cleanup EXIT INT TERM

git reset -q --hard HEAD
git clean -qfdx
if [ -n "$FEATURE_PATCH" ] && [ -s "/patches/$FEATURE_PATCH" ]; then
    echo "Applying feature patch: $FEATURE_PATCH"
    git apply --ignore-whitespace --ignore-space-change "/patches/$FEATURE_PATCH"
fi
echo "Applying test patch: $TEST_PATCH"
git apply --ignore-whitespace --ignore-space-change "/patches/$TEST_PATCH"

COMMANDS
echo "Test execution completed!"
"""
_LATER = """git tag v1.0
sed -i -e '0,/return 0/s//return width * height/' -e 's/return 0/return 2 * (width + height)/' src/rectangle/__init__.py
git -c user.name=t -c user.email=t@t.invalid commit -qam "The future"
git tag v2.0
git update-ref refs/remotes/origin/main HEAD
git reset -q --hard v1.0"""
_FETCH = "import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])"


@dataclass(frozen=True)
class _Kind:
    """What is particular to a tool."""

    tools: str
    """Lines of the Dockerfile."""
    files: Mapping[str, str]
    """Of the repository."""
    source: str
    """Which of them the features change."""
    test: tuple[str, str]
    """Path and text of a feature's tests, with NAME and VALUE in them."""
    commands: str
    """Of the runner: installs and tests."""
    install: str
    """When the image is made."""


_PYTHON = f"""ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN python3 -m venv --without-pip /opt/venv \\
    && python -c "{_FETCH}" $INDEX/files/pip-{PIP}-py3-none-any.whl /tmp/pip.whl \\
    && python /tmp/pip.whl/pip install --ignore-installed pip \\
    && rm /tmp/pip.whl"""
_PYTHON_FILES = {
    ".gitignore": "__pycache__/\n*.egg-info/\n.pytest_cache/\n",
    "src/rectangle/__init__.py": f'''"""Rectangles."""

import widget


def area(width, height):
    {HOLE}


def shown(width, height):
    """In a frame."""
    text = f"{{width}} x {{height}}"
    return widget.framed(text)


def perimeter(width, height):
    {HOLE}
''',
    "tests/test_shown.py": 'from rectangle import shown\n\n\ndef test_shown():\n    assert shown(2, 3) == "[2 x 3]"\n',
}
_PYTHON_TEST = (
    "tests/test_NAME.py",
    "from rectangle import NAME\n\n\ndef test_NAME():\n    assert NAME(2, 3) == VALUE\n",
)


def _pyproject(requires: str, backend: str) -> str:
    return f"""[build-system]
requires = [{requires}, "noise"]
build-backend = "{backend}"

[project]
name = "rectangle"
version = "1.0"
description = "Rectangles."
dependencies = ["widget"]

[project.optional-dependencies]
test = ["pytest"]
"""


_PIP = _Kind(
    tools=_PYTHON,
    files={
        **_PYTHON_FILES,
        "pyproject.toml": _pyproject('"setuptools>=61", "wheel"', "setuptools.build_meta"),
    },
    source="src/rectangle/__init__.py",
    test=_PYTHON_TEST,
    commands="""pip install --upgrade pip || echo "pip could not be upgraded"
pip install -e .[test]
python -m pytest -v tests""",
    install="pip install -e .[test]",
)
_UV = _Kind(
    tools=f"{_PYTHON}\nRUN pip install uv",
    files={**_PYTHON_FILES, "pyproject.toml": _pyproject('"flit_core>=3.4"', "flit_core.buildapi")},
    source="src/rectangle/__init__.py",
    test=_PYTHON_TEST,
    commands="""uv pip install -e '.[test]'
python -m pytest -v tests""",
    install="uv pip install -e '.[test]'",
)
_JAVASCRIPT = f"""import widget from 'widget';

export function area(width, height) {{
  {HOLE};
}}

export function shown(width, height) {{
  // In a frame.
  const text = `${{width}} x ${{height}}`;
  return widget.framed(text);
}}

export function perimeter(width, height) {{
  {HOLE};
}}
"""
_JAVASCRIPT_TEST = """import assert from 'node:assert';
import test from 'node:test';
import { NAME } from '../src/index.js';

test('NAME', () => assert.equal(NAME(2, 3), VALUE));
"""
_PACKAGE = """{
  "name": "rectangle",
  "version": "1.0.0",
  "private": true,
  "type": "module",
  "scripts": {"test": "node --test test"},
  "dependencies": {"widget": "1.0.0"}
}
"""
_LOCK = """lockfileVersion: '6.0'

settings:
  autoInstallPeers: true
  excludeLinksFromLockfile: false

dependencies:
  widget:
    specifier: 1.0.0
    version: 1.0.0

packages:

  /widget@1.0.0:
    resolution: {integrity: INTEGRITY}
    dev: false
"""
_PNPM = _Kind(
    tools=f"""RUN python3 -c "{_FETCH}" $INDEX/npm/npm/-/npm-{NPM}.tgz /tmp/npm.tgz \\
    && mkdir -p /usr/local/lib/node_modules/npm \\
    && tar -xzf /tmp/npm.tgz -C /usr/local/lib/node_modules/npm --strip-components=1 --no-same-owner \\
    && ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \\
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx \\
    && rm /tmp/npm.tgz""",
    files={
        ".gitignore": "node_modules/\n",
        "package.json": _PACKAGE,
        "pnpm-lock.yaml": _LOCK,
        "src/index.js": _JAVASCRIPT,
        "test/shown.test.js": _JAVASCRIPT_TEST.replace("NAME", "shown").replace(
            "VALUE", "'[2 x 3]'"
        ),
    },
    source="src/index.js",
    test=("test/NAME.test.js", _JAVASCRIPT_TEST),
    commands="npx pnpm@8 install\nnpx pnpm@8 test",
    install="npx pnpm@8 install",
)
_APT = """RUN apt-get update && apt-get install -y --no-install-recommends PACKAGES \\
    && apt-get clean && rm -rf /var/lib/apt/lists/*"""
_GO_TEST = """package rectangle

import "testing"

func Test_NAME(t *testing.T) {
\tif NAME(2, 3) != VALUE {
\t\tt.Fatal(NAME(2, 3))
\t}
}
"""
_GO = _Kind(
    tools=f"ENV CGO_ENABLED=0\n{_APT.replace('PACKAGES', 'golang-go')}",
    files={
        "go.mod": "module example.invalid/rectangle\n\ngo 1.19\n",
        "rectangle.go": f"""package rectangle

func area(width, height int) int {{
\t{HOLE}
}}

// A rectangle too.
func square(width, height int) bool {{
\treturn width == height
}}

func perimeter(width, height int) int {{
\t{HOLE}
}}
""",
        "square_test.go": _GO_TEST.replace("NAME", "square").replace("VALUE", "false"),
    },
    source="rectangle.go",
    test=("NAME_test.go", _GO_TEST),
    commands="go test -v ./...",
    install="go test ./...",
)
_RUST = _Kind(
    tools=_APT.replace("PACKAGES", "cargo"),
    files={
        ".gitignore": "target/\n",
        "Cargo.toml": '[package]\nname = "rectangle"\nversion = "1.0.0"\nedition = "2021"\n',
        "src/lib.rs": f"""pub fn area(width: u32, height: u32) -> u32 {{
    {HOLE};
}}

/// A rectangle too.
pub fn square(width: u32, height: u32) -> bool {{
    width == height
}}

pub fn perimeter(width: u32, height: u32) -> u32 {{
    {HOLE};
}}
""",
        "tests/square.rs": "#[test]\nfn square() {\n    assert!(!rectangle::square(2, 3));\n}\n",
    },
    source="src/lib.rs",
    test=(
        "tests/NAME.rs",
        "#[test]\nfn NAME() {\n    assert_eq!(rectangle::NAME(2, 3), VALUE);\n}\n",
    ),
    commands="cargo test",
    install="cargo build",
)
_KINDS = {"pip_task": _PIP, "uv_task": _UV, "pnpm_task": _PNPM, "go_task": _GO, "rust_task": _RUST}
REPOS = tuple(_KINDS)


def write_published(root: Path, packages: Path, repos: Iterable[str] = REPOS) -> dict[str, Task]:
    """The tasks by their repository, in a dataset whose folder is `root`; `packages` is what the index serves."""

    def of_feature(repo: str, task_id: int, feature_id: int) -> Mapping[str, str]:
        name, expression, value = FEATURES[feature_id]
        path, text = (
            part.replace("NAME", name).replace("VALUE", str(value)) for part in _KINDS[repo].test
        )
        return {
            "feature.md": f"# {name.title()}\n\n`{name}` of a rectangle is `{expression}`.\n",
            "feature.patch": _golden(_KINDS[repo], feature_id),
            "tests.patch": text_patch(path, None, text.splitlines(keepends=True)),
        }

    def of_task(repo: str, task_id: int) -> Mapping[str, str]:
        kind = _KINDS[repo]
        arguments = "\n".join(f"ARG {name}" for name in ("INDEX", *ASKING))
        return {
            "Dockerfile": DOCKERFILE.replace("ARGUMENTS", arguments).replace("TOOLS", kind.tools),
            "setup.sh": SETUP.replace("INSTALL", kind.install).replace(
                "LATER", _LATER if kind.tools.startswith(_PYTHON) else ""
            ),
            "runner.sh": RUNNER.replace("COMMANDS", kind.commands),
            "run_tests.sh": "exit 0\n",
            "combined.patch": _golden(kind, *FEATURES),
        }

    write_dataset(
        root,
        {repo: {TASK_ID: list(FEATURES)} for repo in repos},
        feature_content=of_feature,
        task_content=of_task,
    )
    tasks = {task.repo: task for task in load_tasks(root)}
    widget = integrity((packages / "widget-1.0.0.tgz").read_bytes())
    for repo, task in tasks.items():
        for path, text in _KINDS[repo].files.items():
            file = task.path / "base" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("INTEGRITY", widget))
    return tasks


def _golden(kind: _Kind, *feature_ids: int) -> str:
    """The features' patch: the first place that gives 0 is feature 1's."""
    old = kind.files[kind.source]
    bodies = [
        f"return {expression}" if number in feature_ids else HOLE
        for number, (_, expression, _) in FEATURES.items()
    ]
    parts = old.split(HOLE)
    new = "".join(part + body for part, body in zip(parts, [*bodies, ""], strict=True))
    return text_patch(kind.source, old.splitlines(keepends=True), new.splitlines(keepends=True))
