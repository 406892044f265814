"""Configuration of test runners: which files have it, and whether a patch changes it.

Some files, such as conftest.py, are test configuration as a whole. Others, such as pyproject.toml,
contain real work too; only their part about tests is compared. Agents write these files, so they
are parsed in a worker process with limits (`bounded`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from configparser import Error as IniError
from configparser import RawConfigParser
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from cooperbench.bounded import UnreadableInput, call_bounded

# Includes files that run before the tests and can replace them (*.pth), or that choose the program
# that runs them (.npmrc). Excludes files that features change for good reasons and that give no
# more power than library code has: configuration of babel, lock files, build.rs and others.
_CONFIG_NAMES = (
    # pytest, tox, Python
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("tox.ini", "tox.toml", "*.pth"),
    # Jest, Vitest, Mocha and other JavaScript runners
    *("jest.config.*", "jest.setup.*", "jest.preset.*", "setupTests.*"),
    *("vitest.config.*", "vitest.setup.*", "vitest.workspace.*", ".mocharc*"),
    *("karma.conf.*", "ava.config.*", ".taprc", "bunfig.toml"),
    *("playwright.config.*", "cypress.config.*"),
    # npm, yarn, pnpm
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.*"),
    # Go, Rust
    *("go.work", "go.work.sum", "nextest.toml", "insta.yaml", ".insta.yaml"),
    *("rust-toolchain", "rust-toolchain.toml"),
)
_CONFIG_PATH = re.compile(
    r"""
    (?: .*/ )?
    (?: \.cargo/config (?: \.toml )?
      | [^/]+ \. (?: egg | dist ) -info/entry_points\.txt
      | (?: site | user ) customize (?: \.py | /.* )
      | node_modules/.*
    )
    # Modules at an import root that would replace a test framework.
    | (?: src/ )? (?: pytest | _pytest | pluggy | unittest ) (?: \.py | /__init__\.py )
    """,
    re.DOTALL | re.VERBOSE,
)
_MAX_TOML_LINE_LENGTH = 5000
_MAX_FILE_BYTES = 4 * 1024**2
"""Maximum size of a file whose parts are compared; a larger one counts as unreadable."""
_PACKAGE_RUNNERS = ("jest", "vitest", "mocha", "ava", "tap", "karma")
_TEST_SCRIPT = re.compile("(?:pre|post)?test")
_TEST_KEYS = {
    "pyproject.toml": re.compile(
        r"""
        tool/ (?: pytest | tox (?: / | $ ) )
        | (?: project/entry-points | tool/poetry/plugins | tool/flit/entrypoints )
          /pytest11 (?: / | $ )
        """,
        re.VERBOSE,
    ),
    "setup.cfg": re.compile(
        r"""
        [^/]* (?: pytest | tox ) [^/]* /
        | (?: options\. )? entry_points/pytest11 $
        """,
        re.VERBOSE,
    ),
    "package.json": re.compile(
        rf"""
        (?: {"|".join(_PACKAGE_RUNNERS)} ) (?: / | $ )
        | scripts/{_TEST_SCRIPT.pattern}
        """,
        re.VERBOSE,
    ),
    "Cargo.toml": re.compile(
        r"""
        (?: test | profile/test ) (?: / | $ )
        | (?: lib | bin | example ) / (?: .*/ )? (?: test | doctest | harness ) $
        | package/autotests $
        | workspace/ (?: default-members | exclude ) $
        """,
        re.VERBOSE,
    ),
}
"""Files that contain real work too, and the keys in them that configure tests."""
_TEST_CODE = {
    "setup.py": re.compile(rb"pytest11"),
    "vite.config.*": re.compile(rb"\btest\b|vitest"),
}
"""Code cannot be compared in part: the whole file counts if it contains this."""
_TEST_SECTION_NAME = re.compile(rb"pytest|tox\b|\btest")
_PARSE_ERRORS = (ValueError, RecursionError, IniError)


class ConfigChange(NamedTuple):
    """A file that may hold test configuration, before and after a patch."""

    path: str
    before: bytes | None
    """None if the file does not exist."""
    after: bytes | None


def is_test_config(path: str) -> bool:
    """Whether a file is test-runner configuration by its name alone, in any folder."""
    name = path.rpartition("/")[2]
    if any(fnmatchcase(name, pattern) for pattern in _CONFIG_NAMES):
        return True
    return bool(_CONFIG_PATH.fullmatch(path))


def may_hold_test_config(path: str) -> bool:
    """Whether a file contains real work and may configure tests: `config_differs` compares it."""
    name = path.rpartition("/")[2]
    if name in _TEST_KEYS:
        return True
    return any(fnmatchcase(name, pattern) for pattern in _TEST_CODE)


def find_changed_configs(changes: Sequence[ConfigChange]) -> list[ConfigChange]:
    """Return the changes of files with real work that also change test configuration.

    If they cannot be compared within the limits, all of them count as such.
    """
    candidates = [change for change in changes if change.before != change.after]
    if not candidates:
        return []
    try:
        results = call_bounded(compare_configs, candidates)
    except UnreadableInput:
        return candidates
    return [change for change, differs in zip(candidates, results, strict=True) if differs]


def restore_configs(changes: Sequence[ConfigChange]) -> list[bytes | None]:
    """Return each changed file with its original test configuration.

    None stands for a file for which that is impossible.
    """
    if not changes:
        return []
    try:
        return call_bounded(restore_test_configs, list(changes))
    except UnreadableInput:
        return [None] * len(changes)


def compare_configs(changes: list[ConfigChange]) -> list[bool]:
    """Return for each file whether its test configuration differs."""
    return [config_differs(*change) for change in changes]


def restore_test_configs(changes: list[ConfigChange]) -> list[bytes | None]:
    """Return each changed file with its original test configuration, or None."""
    return [restore_test_config(*change) for change in changes]


def config_differs(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Whether the test configuration in a file differs; None means that the file does not exist."""
    if before == after or not may_hold_test_config(path):
        return False
    config_after = _test_config_in(path, after or b"")
    config_before = _test_config_in(path, before or b"")
    if config_after is None:
        return True
    if config_before is None:
        return bool(config_after)
    return config_after != config_before


def _test_config_in(path: str, content: bytes) -> object:
    """Return the test configuration in a file: empty if it has none, None if it is unreadable."""
    if len(content) > _MAX_FILE_BYTES:
        return None
    name = path.rpartition("/")[2]
    for pattern, mention in _TEST_CODE.items():
        if fnmatchcase(name, pattern):
            return content if mention.search(content) else b""
    try:
        document = _parse(name, content)
        if not isinstance(document, dict):
            return None
        test_keys = _TEST_KEYS[name]
        return {key: value for key, value in _flatten(document) if test_keys.match(key)}
    except _PARSE_ERRORS:
        return None


def _parse(name: str, content: bytes) -> object:
    if not content:
        return {}
    if name == "package.json":
        return json.loads(content)
    if name == "setup.cfg":
        return _parse_ini(content)
    return _parse_toml(content)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values of a document with their keys, joined with `/`.

    In a list of tables the name of each table is part of the key.
    """
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = {str(item.get("name", index)): item for index, item in enumerate(value)}
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{key}/")
        elif value is not None:
            yield key, value


def _parse_ini(content: bytes) -> dict[str, dict[str, str]]:
    parser = RawConfigParser(strict=False, default_section="\0")
    # The parser takes time quadratic in the number of spaces inside a line.
    text = re.sub(r"(?<=\S)[^\S\n]+", " ", content.decode("utf-8-sig"))
    parser.read_string(text)
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _parse_toml(content: bytes) -> dict[str, Any]:
    # The parser takes time quadratic in the length of a key.
    if any(len(line) > _MAX_TOML_LINE_LENGTH for line in content.split(b"\n")):
        raise ValueError("a line is too long")
    return tomllib.loads(content.decode("utf-8"))


def restore_test_config(path: str, before: bytes | None, after: bytes | None) -> bytes | None:
    """Return the changed file with its original test configuration; None if that is impossible."""
    if not after or len(after) > _MAX_FILE_BYTES:
        return None
    try:
        if path.rpartition("/")[2] == "package.json":
            restored = _restore_package_json(json.loads(before or b"{}"), json.loads(after))
        else:
            restored = _restore_sections(before or b"", after)
    except (*_PARSE_ERRORS, AttributeError, TypeError):
        return None
    if not restored or config_differs(path, before, restored):
        return None
    return restored


def _restore_sections(before: bytes, after: bytes) -> bytes:
    """Return the changed file with the original sections about tests; empty if nothing is left."""
    work = [part for part in _sections(after) if not _is_test_section(part)]
    config = [part for part in _sections(before) if _is_test_section(part)]
    if not b"".join(work).strip():
        return b""
    return b"\n".join([*work, *config])


def _restore_package_json(before: dict[str, Any], after: dict[str, Any]) -> bytes:
    document = {key: value for key, value in after.items() if key not in _PACKAGE_RUNNERS}
    document |= {key: value for key, value in before.items() if key in _PACKAGE_RUNNERS}
    scripts_before, scripts_after = before.get("scripts", {}), after.get("scripts", {})
    scripts = {key: value for key, value in scripts_after.items() if not _TEST_SCRIPT.match(key)}
    scripts |= {key: value for key, value in scripts_before.items() if _TEST_SCRIPT.match(key)}
    if scripts:
        document["scripts"] = scripts
    return json.dumps(document, indent=2).encode() + b"\n"


def _is_test_section(section: bytes) -> bool:
    """Whether a section, such as `[tool.pytest.ini_options]` and its lines, is about tests."""
    heading = section.partition(b"\n")[0]
    if not heading.startswith(b"["):
        return False
    name = heading.partition(b"]")[0]
    return _TEST_SECTION_NAME.search(name) is not None


def _sections(content: bytes) -> list[bytes]:
    return re.split(rb"^(?=\[)", content, flags=re.MULTILINE)
