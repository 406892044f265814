"""Test-runner configuration: which files are nothing else, and what of other files is.

Configuration beyond the obvious, and why: start-up files of an interpreter (sitecustomize.py, *.pth) and registered
pytest plugins (`pytest11`, entry_points.txt) run before the tests and can replace them; .npmrc (`node-options`),
.yarnrc (`yarnPath`), .pnpmfile and rust-toolchain choose the program that runs them; a `pytest.py` at the root or
anything in node_modules can be that program. Not counted, because features rightly change them and they give no more
power than library code has: babel, TypeScript and coverage settings, lock files, dependencies, Makefiles, build.rs.
"""

from __future__ import annotations

import json
import re
import tomllib
from configparser import Error, RawConfigParser
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml"),
    *("sitecustomize.py", "usercustomize.py", "*.pth"),
    *("jest.config.*", "jest.setup.*", "jest.preset.*", "setupTests.*", "karma.conf.*", ".mocharc*"),
    *("vitest.config.*", "vitest.setup.*", "vitest.workspace.*"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.*", ".taprc"),
    *("ava.config.*", "bunfig.toml", "playwright.config.*", "cypress.config.*", "go.work", "go.work.sum"),
    *("nextest.toml", "rust-toolchain", "rust-toolchain.toml"),
)
_PATHS = re.compile(
    r"(?:.*/)?(?:"
    r"\.cargo/config(?:\.toml)?"
    r"|[^/]+\.(?:egg|dist)-info/entry_points\.txt"
    r"|node_modules/.*"
    r")"
    r"|(?:src/)?(?:pytest|_pytest|pluggy|unittest)(?:\.py|/__init__\.py)",
    re.DOTALL,
)
_LONGEST_TOML_LINE = 5000
_PACKAGE_RUNNERS = ("jest", "vitest", "mocha", "ava", "tap", "karma")
_TEST_SCRIPT = re.compile("(?:pre|post)?test")
_TEST_SECTION = re.compile(rb"\[+[^\]\n]*(?:pytest|tox\b|\btest)")
_UNREADABLE = (ValueError, RecursionError)


def is_test_config(path: str) -> bool:
    """Whether a file is test-runner configuration by its name alone, wherever it lies."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in _NAMES) or bool(_PATHS.fullmatch(path))


def may_hold_test_config(path: str) -> bool:
    """Whether `config_differs` has to look into it: a file that carries real work, too."""
    return _reader_of(path) is not None


def config_differs(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Whether the test-runner part of a file differs; None where the file is absent."""
    reader = _reader_of(path)
    if reader is None or before == after:
        return False
    nothing = reader(b"")
    try:
        part_after = nothing if after is None else reader(after)
    except _UNREADABLE:
        return True
    try:
        part_before = nothing if before is None else reader(before)
    except _UNREADABLE:
        part_before = nothing
    return part_before != part_after


def without_test_config(path: str, before: bytes | None, after: bytes | None) -> bytes | None:
    """A change of a file without that of its test-runner part; None where the two cannot be told apart."""
    if not after:
        return None
    try:
        if path.rpartition("/")[2] == "package.json":
            restored = _package_json_with(json.loads(before or b"{}"), json.loads(after))
        else:
            kept = [part for part in _sections(after) if not _TEST_SECTION.match(part)]
            ours = [part for part in _sections(before or b"") if _TEST_SECTION.match(part)]
            if not b"".join(kept).strip():
                return None
            restored = b"\n".join([*kept, *ours])
    except (*_UNREADABLE, AttributeError, TypeError):
        return None
    return None if config_differs(path, before, restored) else restored


def _package_json_with(before: dict[str, Any], after: dict[str, Any]) -> bytes:
    """The latter with the test-runner part of the former."""
    scripts = {key: value for key, value in after.get("scripts", {}).items() if not _TEST_SCRIPT.match(key)}
    scripts |= {key: value for key, value in before.get("scripts", {}).items() if _TEST_SCRIPT.match(key)}
    document = {key: value for key, value in after.items() if key not in _PACKAGE_RUNNERS}
    document |= {key: value for key, value in before.items() if key in _PACKAGE_RUNNERS}
    return json.dumps(document | ({"scripts": scripts} if scripts else {}), indent=2).encode() + b"\n"


def _sections(content: bytes) -> list[bytes]:
    return re.split(rb"^(?=\[)", content, flags=re.MULTILINE)


def _reader_of(path: str) -> Callable[[bytes], object] | None:
    """How to take the test-runner part out of a file; it raises one of `_UNREADABLE` where it cannot."""
    name = path.rpartition("/")[2]
    if fnmatchcase(name, "vite.config.*"):
        return _whole_if(rb"\btest\b|vitest")
    return _READERS.get(name)


def _whole_if(mentions: bytes) -> Callable[[bytes], object]:
    """For code, which cannot be compared in part: all of it where it has a test-runner part, else nothing."""
    pattern = re.compile(mentions)
    return lambda content: content if pattern.search(content) else b""


def _pyproject_part(content: bytes) -> object:
    document = _toml(content)
    tool = _table(document, "tool")
    return [
        {key: value for key, value in tool.items() if key.startswith("pytest") or key == "tox"},
        _table(document, "project", "entry-points").get("pytest11"),
        _table(tool, "poetry", "plugins").get("pytest11"),
        _table(tool, "flit", "entrypoints").get("pytest11"),
    ]


def _setup_cfg_part(content: bytes) -> object:
    parser = RawConfigParser(strict=False, default_section="\0")
    # The parser takes time quadratic in blanks inside a line.
    text = re.sub(r"(?<=\S)[^\S\n]+", " ", content.decode("utf-8-sig"))
    try:
        parser.read_string(text)
    except Error as error:
        raise ValueError(str(error)) from error
    runner_sections = [name for name in parser.sections() if "pytest" in name or "tox" in name]
    plugins = [
        parser.get(name, "pytest11", fallback=None) for name in ("options.entry_points", "entry_points")
    ]
    return [{name: dict(parser.items(name)) for name in runner_sections}, plugins]


def _package_json_part(content: bytes) -> object:
    document = json.loads(content or b"{}")
    if not isinstance(document, dict):
        raise ValueError("not an object")
    scripts = _table(document, "scripts")
    return [
        {key: document.get(key) for key in _PACKAGE_RUNNERS},
        {key: value for key, value in scripts.items() if _TEST_SCRIPT.match(key)},
    ]


def _cargo_part(content: bytes) -> object:
    document = _toml(content)
    targets = [_table(document, "lib"), *_tables(document, "bin"), *_tables(document, "example")]
    switches = [[target.get(key) for key in ("name", "test", "doctest", "harness")] for target in targets]
    return [
        document.get("test"),
        [switch for switch in switches if any(value is not None for value in switch[1:])],
        _table(document, "package").get("autotests"),
        {key: _table(document, "workspace").get(key) for key in ("default-members", "exclude")},
        _table(document, "profile").get("test"),
    ]


def _toml(content: bytes) -> dict[str, Any]:
    # The parser takes time quadratic in the length of a key.
    if any(len(line) > _LONGEST_TOML_LINE for line in content.split(b"\n")):
        raise ValueError("a line is too long")
    return tomllib.loads(content.decode("utf-8"))


def _table(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A table inside a document; an empty one where there is none."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _tables(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


_READERS: Mapping[str, Callable[[bytes], object]] = {
    "pyproject.toml": _pyproject_part,
    "setup.cfg": _setup_cfg_part,
    "setup.py": _whole_if(rb"pytest11"),
    "package.json": _package_json_part,
    "Cargo.toml": _cargo_part,
}
