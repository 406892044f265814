"""What of an agent's patch may reach the tests: everything except what decides which tests run and how.

Dropped are whole file sections that touch
- a path of the hidden test patches (or stand where one of them needs a folder): "hidden_test";
- what belongs to the tests by its path, see `testside`;
- test-runner configuration, which is taken from the dataset, never from an agent: "test_config". Files that
  are nothing else go by their name. Files that carry real work too (pyproject.toml, setup.cfg, setup.py,
  package.json, Cargo.toml, vite.config.*) go only if their test-runner part differs before
  and after the patch.

What counts as configuration beyond the obvious, and why: start-up files of an interpreter
(sitecustomize.py, *.pth), registered pytest plugins (`pytest11`, entry_points.txt) run
before the tests and can replace them; .npmrc (`node-options`), .yarnrc (`yarnPath`), .pnpmfile and
rust-toolchain choose the program that runs them; a `pytest.py` at the root or anything in node_modules
can be that program. Not counted, because features rightly change them and they give no more
power than library code has: babel, TypeScript and coverage settings, lock files, dependencies, Makefiles,
build.rs, .node-version.

This protects against a patch that rewrites, deselects or reconfigures the hidden tests, on purpose or by
accident. Against code under test that attacks its tests from inside the process (patches the assertion
library, exits early with code 0, prints a summary) there are the expected tests and the canary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from cooperbench.diff import Diff, PatchError, check_safe_paths, parse_diff, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cooperbench.diff import FilePatch
    from cooperbench.eval.testside import TestSide

Reason = Literal["hidden_test", "test_config", "test_file", "compiled_file", "shadows_module"]


@dataclass(frozen=True)
class DroppedFile:
    """A path whose changes did not reach the tests."""

    path: str
    reason: Reason


@dataclass(frozen=True)
class CleanPatch:
    """An agent's patch as it is tested."""

    patch: bytes
    """What remains, byte for byte; empty where no file remains."""
    dropped: tuple[DroppedFile, ...]
    """In the order of the patch; a dropped rename or copy has both of its paths here."""


def clean_patch(
    patch: bytes,
    test_side: TestSide,
    base_file: Callable[[str], bytes | None],
    patched_file: Callable[[str], bytes | None],
) -> CleanPatch:
    """Drop what an agent may not bring. The functions give a file before and after the patch, None if absent.

    Raises PatchError for what is not a diff, or one that reaches outside of the repository.
    """
    diff = parse_diff(patch)
    check_safe_paths(diff)
    folders = frozenset(folder for path in test_side.hidden for folder in _folders_of(path))
    kept: list[FilePatch] = []
    dropped: list[DroppedFile] = []
    pieces = [diff.preamble]
    for section in diff.files:
        reason = _reason_to_drop(section, test_side, folders, base_file, patched_file)
        if reason is None:
            kept.append(section)
            pieces.append(section.data)
        else:
            dropped.extend(DroppedFile(path, reason) for path in section.paths)
        pieces.append(section.trailer)
    if not dropped:
        return CleanPatch(patch, ())
    return CleanPatch(_joined(pieces, kept), tuple(dict.fromkeys(dropped)))


def _joined(pieces: list[bytes], kept: list[FilePatch]) -> bytes:
    """The pieces, with the text between the files only if each file still is what it was.

    Text that followed a dropped file now follows the one before it, and could be made to be read as part of
    that one's header: a rename onto a hidden test, say.
    """
    if not kept:
        return b""
    joined = b"".join(pieces)
    try:
        read_again = [section.data for section in parse_diff(joined).files]
    except PatchError:
        read_again = []
    if read_again == [section.data for section in kept]:
        return joined
    return render(Diff(b"", tuple(replace(section, trailer=b"") for section in kept)))


def _folders_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _reason_to_drop(
    section: FilePatch,
    test_side: TestSide,
    folders: frozenset[str],
    base_file: Callable[[str], bytes | None],
    patched_file: Callable[[str], bytes | None],
) -> Reason | None:
    paths = section.reachable_paths
    if not test_side.hidden.isdisjoint(paths) or not folders.isdisjoint(paths):
        return "hidden_test"
    for path in paths:
        if is_test_config(path):
            return "test_config"
        runner_part = _runner_part_reader(path)
        if runner_part and _differs(runner_part, base_file(path), patched_file(path)):
            return "test_config"
    return next((reason for path in section.paths if (reason := test_side.reason_to_drop(path))), None)


# Files that are test-runner configuration and nothing else

_CONFIG_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml"),
    *("sitecustomize.py", "usercustomize.py", "*.pth"),
    *("jest.config.*", "jest.setup.*", "jest.preset.*", "setupTests.*", "karma.conf.*", ".mocharc*"),
    *("vitest.config.*", "vitest.setup.*", "vitest.workspace.*"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.*", ".taprc"),
    *("ava.config.*", "bunfig.toml", "playwright.config.*", "cypress.config.*", "go.work", "go.work.sum"),
    *("nextest.toml", "rust-toolchain", "rust-toolchain.toml"),
)
_CONFIG_PATHS = re.compile(
    r"(?:.*/)?(?:"
    r"\.cargo/config(?:\.toml)?"
    r"|[^/]+\.(?:egg|dist)-info/entry_points\.txt"
    r"|node_modules/.*"
    r")"
    r"|(?:src/)?(?:pytest|_pytest|pluggy|unittest)(?:\.py|/__init__\.py)",
    re.DOTALL,
)


def is_test_config(path: str) -> bool:
    """Whether a file is test-runner configuration by its name alone, wherever it lies."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in _CONFIG_NAMES) or bool(_CONFIG_PATHS.fullmatch(path))


# Files that are that in part

_UNREADABLE = (ValueError, RecursionError)


def _runner_part_reader(path: str) -> Callable[[bytes], object] | None:
    """How to take the test-runner part out of a file; it raises one of `_UNREADABLE` where it cannot."""
    name = path.rpartition("/")[2]
    if name in _READERS:
        return _READERS[name]
    if fnmatchcase(name, "vite.config.*"):
        return _whole_if(rb"\btest\b|vitest")
    return None


def _differs(runner_part: Callable[[bytes], object], before: bytes | None, after: bytes | None) -> bool:
    if before == after:
        return False
    nothing = runner_part(b"")
    try:
        part_after = nothing if after is None else runner_part(after)
    except _UNREADABLE:
        return True
    try:
        part_before = nothing if before is None else runner_part(before)
    except _UNREADABLE:
        part_before = nothing
    return part_before != part_after


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
    from configparser import Error, RawConfigParser

    parser = RawConfigParser(strict=False, default_section="\0")
    try:
        parser.read_string(content.decode("utf-8-sig"))
    except Error as error:
        raise ValueError(str(error)) from error
    runner_sections = [name for name in parser.sections() if "pytest" in name or "tox" in name]
    plugins = [
        parser.get(name, "pytest11", fallback=None) for name in ("options.entry_points", "entry_points")
    ]
    return [{name: dict(parser.items(name)) for name in runner_sections}, plugins]


def _package_json_part(content: bytes) -> object:
    import json

    document = json.loads(content or b"{}")
    if not isinstance(document, dict):
        raise ValueError("not an object")
    scripts = _table(document, "scripts")
    return [
        {key: document.get(key) for key in ("jest", "vitest", "mocha", "ava", "tap", "karma")},
        {key: value for key, value in scripts.items() if re.match("(?:pre|post)?test", key)},
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
    import tomllib

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
