"""Which files are test-runner configuration, and which are in part."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.eval.test_config import (
    config_differs,
    is_test_config,
    may_hold_test_config,
    restore_test_config,
)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "conftest.py",
            "tests/unit/conftest.py",
            "pytest.ini",
            ".pytest.ini",
            "pytest.toml",
            ".pytest.toml",
        ),
        *(
            "tox.ini",
            "sub/tox.ini",
            "sitecustomize.py",
            "src/usercustomize/__init__.py",
            "evil.pth",
        ),
        *(
            "jest.config.js",
            "packages/a/jest.config.mjs",
            "vitest.config.ts",
            "vitest.workspace.json",
            "karma.conf.js",
        ),
        *(".mocharc", ".mocharc.yml", ".npmrc", ".yarnrc.yml", "node_modules/jest/index.js"),
        *(
            ".cargo/config",
            "sub/.cargo/config.toml",
            ".config/nextest.toml",
            ".config/insta.yaml",
            "rust-toolchain.toml",
            "go.work",
        ),
        *(
            "ava.config.js",
            "bunfig.toml",
            "e2e/playwright.config.ts",
            "packages/a/node_modules/b/index.js",
        ),
        *(
            "x.egg-info/entry_points.txt",
            "pytest.py",
            "src/_pytest/__init__.py",
            "unittest/__init__.py",
        ),
    ],
)
def test_test_runner_configuration_is_known_by_name(path: str) -> None:
    assert is_test_config(path)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "src/myconftest.py",
            "conftest.py.md",
            "docs/pytest.ini.md",
            "src/jest/config.js",
            "cargo/config.toml",
        ),
        *("lib/pytest.py", "entry_points.txt", "fixtures/modules/a.js"),
        *(
            "babel.config.js",
            "tsconfig.json",
            ".coveragerc",
            "Makefile",
            "build.rs",
            ".node-version",
        ),
    ],
)
def test_other_files_are_work(path: str) -> None:
    assert not is_test_config(path)


@pytest.mark.parametrize(
    ("path", "before", "after", "is_dropped"),
    [
        ("pyproject.toml", b"[tool.pytest.x]\na=1", b"[project]\nname='x'\n[tool.pytest.x]\na=1", False),
        ("pyproject.toml", b"[tool.coverage.run]\na=1", b"[tool.coverage.run]\na=2", False),
        ("pyproject.toml", None, b"[project]\nname='x'", False),
        ("pyproject.toml", b"[project]\nname='x'", None, False),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na=1", b"[tool.pytest.ini_options]\na=2", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na=1", None, True),
        ("pyproject.toml", b"", b"[tool.pytest]\na=1", True),
        ("pyproject.toml", b"", b"[project.entry-points.pytest11]\na='b'", True),
        ("pyproject.toml", b"", b"[project.entry-points.other]\na='b'", False),
        ("pyproject.toml", b"", b"[tool.poetry.plugins.pytest11]\na='b'", True),
        ("pyproject.toml", b"", b"[tool.pytest", True),
        ("pyproject.toml", b"", b"\xff", True),
        ("pyproject.toml", b"[broken", b"[project]\nname='x'", False),
        ("pyproject.toml", b"[broken", b"[broken", False),
        ("sub/pyproject.toml", b"", b"[tool.pytest]\na=1", True),
        ("setup.cfg", b"[metadata]\nname=x", b"[metadata]\nname=y\n[tool:other]\na=1", False),
        ("setup.cfg", b"[tool:pytest]\naddopts=-q", b"[tool:pytest]\naddopts=-k nothing", True),
        ("setup.cfg", b"", b"[options.entry_points]\npytest11 =\n  a = b", True),
        ("setup.cfg", b"", b"[options.entry_points]\nconsole_scripts =\n  a = b", False),
        ("setup.cfg", b"", b"no section", True),
        ("setup.py", b"setup()", b"setup(name='x')", False),
        ("setup.py", b"setup()", b"setup(entry_points={'pytest11': ['a = b']})", True),
        ("package.json", b'{"scripts": {"test": "a"}}', b'{"name": "x", "scripts": {"test": "a", "b": "c"}}', False),
        ("package.json", b'{"scripts": {"test": "jest"}}', b'{"scripts": {"test": "true"}}', True),
        ("package.json", b"{}", b'{"scripts": {"pretest:unit": "x"}}', True),
        ("package.json", b"{}", b'{"jest": {"testMatch": []}}', True),
        ("package.json", b"{}", b"[]", True),
        ("package.json", b"{}", b"{" * 100_000, True),
        ("Cargo.toml", b"[package]\nname='x'", b"[package]\nname='x'\n[[bin]]\nname='y'\n[dependencies]\na='1'", False),
        ("Cargo.toml", b"[lib]\nname='x'", b"[lib]\nname='x'\ntest=false", True),
        ("Cargo.toml", b"[lib]\nname='x'", b"[lib]\nname='x'\nharness=false", True),
        ("Cargo.toml", b"", b"[[test]]\nname='t'\nharness=false", True),
        ("Cargo.toml", b"[package]\nname='x'", b"[package]\nname='x'\nautotests=false", True),
        ("Cargo.toml", b"[workspace]\nmembers=['a']", b"[workspace]\nmembers=['a','b']", False),
        ("Cargo.toml", b"[workspace]\nmembers=['a']", b"[workspace]\nmembers=['a']\ndefault-members=[]", True),
        ("vite.config.ts", b"export default {}", b"export default { plugins: [] }", False),
        ("vite.config.ts", b"export default {}", b"export default { test: { include: [] } }", True),
    ],
)  # fmt: skip
def test_mixed_files_differ_only_if_their_test_runner_part_does(
    path: str, before: bytes | None, after: bytes | None, is_dropped: bool
) -> None:
    assert may_hold_test_config(path)
    assert config_differs(path, before, after) == is_dropped


@given(
    st.binary(max_size=300),
    st.sampled_from(["pyproject.toml", "setup.cfg", "package.json", "Cargo.toml"]),
)
def test_no_content_breaks_the_comparison(content: bytes, path: str) -> None:
    assert not config_differs(path, content, content)
    for before, after in ((content, b""), (None, content), (content, None)):
        assert config_differs(path, before, after) in (True, False)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("setup.cfg", b"[a]\na" + b" " * 1_000_000 + b"b\n"),
        ("pyproject.toml", b"a" + b".a" * 500_000 + b" = 1\n"),
        ("Cargo.toml", b"[" + b"a." * 500_000 + b"a]\n"),
        ("package.json", b'{"a":' * 200_000),
    ],
)
def test_hostile_content_takes_no_time(path: str, content: bytes) -> None:
    config_differs(path, None, content)


RESTORED = [
    (
        "web/package.json",
        '{"name": "x", "scripts": {"test": "jest", "build": "b"}, "jest": {"a": 1}}',
        '{"name": "x", "scripts": {"test": "true", "build": "c"}, "dependencies": {"y": "1"}}',
        '{"name": "x", "scripts": {"test": "jest", "build": "c"}, "dependencies": {"y": "1"}, "jest": {"a": 1}}',
    ),
    (
        "pyproject.toml",
        "[project]\nname = 'x'\n[tool.pytest.ini_options]\naddopts = '-q'\n",
        "[project]\nname = 'x'\ndependencies = ['y']\n[tool.pytest.ini_options]\naddopts = '-k no'\n[tool.z]\na = 1\n",
        "[project]\nname = 'x'\ndependencies = ['y']\n[tool.z]\na = 1\n[tool.pytest.ini_options]\naddopts = '-q'\n",
    ),
    ("Cargo.toml", "[package]\nname = 'x'\n", "[package]\nname = 'x'\n[[test]]\nname = 'a'\nharness = false\n[dependencies]\ny = '1'\n", "[package]\nname = 'x'\n[dependencies]\ny = '1'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "before", "after", "restored"), RESTORED)
def test_the_rest_of_a_change_is_kept(path: str, before: str, after: str, restored: str) -> None:
    assert config_differs(path, before.encode(), after.encode())
    found = restore_test_config(path, before.encode(), after.encode())
    assert found is not None
    read = json.loads if path.endswith("json") else tomllib.loads
    assert read(found.decode()) == read(restored)


@pytest.mark.parametrize(
    ("path", "after"),
    [
        (
            "pyproject.toml",
            '[project]\nname = "x"\n["tool"."p\\u0079test".ini_options]\naddopts = "-k no"\n',
        ),
        ("pyproject.toml", '[tool]\npytest = { ini_options = { addopts = "-k no" } }\n'),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-k no'\n"),
        ("package.json", "[1]"),
        ("package.json", '{"scripts": [1]}'),
        ("setup.py", "entry_points={'pytest11': ['x = x']}\n"),
        ("Cargo.toml", "no toml"),
    ],
)
def test_a_change_that_cannot_be_divided_is_left_out(path: str, after: str) -> None:
    assert restore_test_config(path, b"", after.encode()) is None
