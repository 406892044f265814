"""What of an agent's patch is judged: its tree without whatever decides which tests run and how.

That comes from the dataset, never from an agent; docs/evaluation.md has the rules. Against code under test that attacks
its tests from inside the process there are the expected tests and the canary.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from configparser import Error as IniError
from configparser import RawConfigParser
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from posixpath import normpath
from typing import Any, Literal

from cooperbench.eval.trees import FILE, LINK, Applied, Change, DroppedFile, TreeEntry, TreeStore
from cooperbench.git import GitError
from cooperbench.models import Feature

Reason = Literal[
    "hidden_test",
    "test_config",
    "test_file",
    "compiled_file",
    "installed_package",
    "shadows_module",
]

_TEST_FOLDER = re.compile(
    r"(?:.*?/)?(?:tests?|__tests__|__mocks__|__snapshots__|__fixtures__|testdata)(?=/)",
    re.DOTALL | re.IGNORECASE,
)
_TEST_NAME = re.compile(
    r"(?:.*/)?(?:test_[^/]*\.pyi?|[^/]*_tests?\.py|tests?\.py"
    r"|[^/]*_test\.go|[^/]*\.(?:test|spec)\.[cm]?[jt]sx?|[^/]*\.snap)",
    re.DOTALL | re.IGNORECASE,
)
_CRATE = re.compile(r"(?:.*/)?src/", re.DOTALL)
"""Below it are unit tests of Rust: the crate does not compile without them, and they can do no more than it."""
_FOUND_BY_TOOLS = re.compile(
    r"(?:.*/)?(?:\.[^/]*|__(?:mocks|tests|snapshots)__/.*|\.[^/]*/.*|mocha\.opts"
    r"|test[^/]*\.(?:txt|rst)|[^/]*\.config\.[^/]*|[jt]sconfig[^/]*\.json)",
    re.DOTALL | re.IGNORECASE,
)
"""Files that are no code and that test tools look for."""
_LOADED = re.compile(r".*\.(?:pyi?|[cm]?[jt]sx?|go|typ|rb|sh|bash|snap)", re.DOTALL | re.IGNORECASE)
"""Code and snapshots that tests could load."""
_COMPILED = re.compile(
    r"(?:.*/)?(?:__pycache__/.*|[^/]*\.(?:py[cod]|so|dylib|dll|node))", re.DOTALL | re.IGNORECASE
)
_ROOTS = ("src", "lib")
_MAX_UNITS = 30
_MAX_NAMES = 100
_PYTHON_FILE = re.compile(r".*\.(?:pyi?|so)", re.DOTALL)
# Among them what runs before the tests and can replace them (*.pth), or chooses the program that runs them (.npmrc).
# Not what features rightly change and gives no more power than library code has: babel, lock files, build.rs, …
_CONFIG_NAMES = (
    *(
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "tox.toml",
    ),
    *(
        "*.pth",
        "jest.config.*",
        "jest.setup.*",
        "jest.preset.*",
        "setupTests.*",
        "karma.conf.*",
        ".mocharc*",
    ),
    *("vitest.config.*", "vitest.setup.*", "vitest.workspace.*"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.*", ".taprc"),
    *(
        "ava.config.*",
        "bunfig.toml",
        "playwright.config.*",
        "cypress.config.*",
        "go.work",
        "go.work.sum",
    ),
    *("nextest.toml", "insta.yaml", ".insta.yaml", "rust-toolchain", "rust-toolchain.toml"),
)
_CONFIG_PATHS = re.compile(
    r"(?:.*/)?(?:"
    r"\.cargo/config(?:\.toml)?"
    r"|[^/]+\.(?:egg|dist)-info/entry_points\.txt"
    r"|(?:site|user)customize(?:\.py|/.*)"
    r"|node_modules/.*"
    r")"
    r"|(?:src/)?(?:pytest|_pytest|pluggy|unittest)(?:\.py|/__init__\.py)",
    re.DOTALL,
)
_MAX_TOML_LINE_LENGTH = 5000
_PACKAGE_RUNNERS = ("jest", "vitest", "mocha", "ava", "tap", "karma")
_TEST_SCRIPT = re.compile("(?:pre|post)?test")
_TEST_PARTS = {
    "pyproject.toml": r"tool/(?:pytest|tox(?:/|$))"
    r"|(?:project/entry-points|tool/poetry/plugins|tool/flit/entrypoints)/pytest11(?:/|$)",
    "setup.cfg": r"[^/]*(?:pytest|tox)[^/]*/|(?:options\.)?entry_points/pytest11$",
    "package.json": rf"(?:{'|'.join(_PACKAGE_RUNNERS)})(?:/|$)|scripts/{_TEST_SCRIPT.pattern}",
    "Cargo.toml": r"(?:test|profile/test)(?:/|$)|(?:lib|bin|example)/(?:.*/)?(?:test|doctest|harness)$"
    r"|package/autotests$|workspace/(?:default-members|exclude)$",
}
"""The test-runner part of files that carry real work, too: places in what they say."""
_TEST_CODE = {"setup.py": rb"pytest11", "vite.config.*": rb"\btest\b|vitest"}
"""Code cannot be compared in part: all of it counts where it mentions that."""
_TEST_SECTION = re.compile(rb"\[+[^\]\n]*(?:pytest|tox\b|\btest)")
_UNREADABLE = (ValueError, RecursionError, IniError)


def _folders_above(path: str) -> set[str]:
    return {path[:place] for place, letter in enumerate(path) if letter == "/"}


@dataclass(frozen=True)
class ProtectedFiles:
    """What an agent's patch is held against."""

    __test__ = False

    hidden: frozenset[str]
    """Paths of the hidden tests."""
    golden: frozenset[str] = frozenset()
    """Paths that golden patches touch; files with other work, too, only where their settings of tests change."""
    base: Collection[str] = field(default=(), repr=False)
    """Paths of the base commit."""
    installed_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the Python modules in the image."""

    def reason_to_drop(self, path: str) -> Reason | None:
        """By the path alone."""
        if self._is_in_the_way(path):
            return "hidden_test"
        if path in self.golden:
            return None
        if is_test_config(path):
            return "test_config"
        if self.looks_like_tests(path):
            return "test_file"
        if _COMPILED.fullmatch(path):
            return "compiled_file"
        if path.startswith("vendor/") and "go.mod" in self.base:
            return "installed_package"
        return "shadows_module" if self._shadows(path) else None

    @staticmethod
    def looks_like_tests(path: str) -> bool:
        folder = _TEST_FOLDER.match(path)
        if path.endswith(".rs"):
            return bool(folder and not _CRATE.match(folder[0]))
        return bool(folder or _TEST_NAME.fullmatch(path))

    def _is_in_the_way(self, path: str) -> bool:
        """A hidden test, a file where one needs a folder, or a file below where one has to be."""
        return (
            path in self.hidden
            or not self.hidden.isdisjoint(_folders_above(path))
            or any(hidden.startswith(f"{path}/") for hidden in self.hidden)
        )

    @cached_property
    def _base_modules(self) -> set[str]:
        """Folders of the base, and its Python files without their endings."""
        folders = {folder for path in self.base for folder in _folders_above(path)}
        return folders | {re.sub(r"\.pyi?$", "", path) for path in self.base}

    def _shadows(self, path: str) -> bool:
        """A new Python module whose name, at an import root, is that of another one."""
        if not _PYTHON_FILE.fullmatch(path) or path in self.base:
            return False
        parts = path.split("/")
        for depth in range(len(parts)):
            root = "".join(f"{part}/" for part in parts[:depth])
            if f"{root}__init__.py" in self.base or (root and root[:-1] not in self._base_modules):
                return False  # inside of a package, or of a new folder, which is no import root yet
            name = parts[depth].partition(".")[0]
            if f"{root}{name}" in self._base_modules:
                continue
            if name in sys.stdlib_module_names or name in self.installed_modules:
                return True
        return False

    def library_part(self, paths: Iterable[str], tree: str, store: TreeStore) -> set[str]:
        """Which of these paths of a patch look like tests and are not."""
        units: dict[str, list[str]] = {}
        for path in paths:
            folder = _TEST_FOLDER.match(path)
            if folder or path.endswith((".py", ".pyi")):
                units.setdefault(folder[0] if folder else path, []).append(path)
        # Each is looked for in the whole tree. Whoever hands in more of them has copied installed packages.
        importers = {
            unit: self._importers(unit, units[unit], tree, store)
            for unit in sorted(units, key=len)[:_MAX_UNITS]
        }
        kept: set[str] = set()
        while new := [
            unit for unit, by in importers.items() if any(self._is_code(one, kept) for one in by)
        ]:
            kept.update(path for unit in new for path in units[unit])  # they may import others
            importers = {unit: by for unit, by in importers.items() if unit not in new}
        return kept

    def _is_code(self, path: str, kept: set[str]) -> bool:
        return path in kept or path in self.golden or not self.looks_like_tests(path)

    def _importers(
        self, unit: str, changed: Sequence[str], tree: str, store: TreeStore
    ) -> set[str]:
        """Who imports something of a file, or of a folder that holds no tests. A golden patch that works there does."""
        there = [path for path in (*self.base, *self.hidden) if path.startswith(f"{unit}/")]
        is_folder = unit not in changed
        if is_folder and (
            "/" not in unit or any(self._is_test(path) for path in (*there, *changed))
        ):
            return set()
        if of_golden := {path for path in self.golden if path.startswith(f"{unit}/")}:
            return of_golden
        # Of what there was before, only who imported it before counts: an agent could add such a line.
        is_new = not there and unit not in self.base
        unit = re.sub(r"\.pyi?$", "", unit)
        return {
            path
            for path, line in store.lines_with(
                [unit.rpartition("/")[2]], tree if is_new else store.base.tree
            )
            if not path.endswith(".rs") and path not in self.hidden and _imports(path, line, unit)
        }

    def data_part(self, new: Iterable[str], tree: str, store: TreeStore) -> set[str]:
        """Which of these new files are data of the library and not of the tests.

        Snapshots of a crate's own tests, what lies in a new folder, and what code names but no test of the base.
        """
        kept, names = set[str](), dict[str, set[str]]()
        for path in new:
            folder, is_snapshot = _TEST_FOLDER.match(path), path.endswith(".snap")
            if _FOUND_BY_TOOLS.fullmatch(path) or may_hold_test_config(path) or self._shadows(path):
                continue
            is_new = folder and not _LOADED.fullmatch(path) and not self._is_known(folder[0])
            if _CRATE.match(folder[0] if folder else path) if is_snapshot else is_new:
                kept.add(path)
            elif folder and (is_snapshot or not self._is_test(path)):
                *above, name = path.split("/")
                for one in (name, "/".join(above[-2:])):
                    names.setdefault(one, set()).add(path)
        names = dict(sorted(names.items(), key=lambda one: -len(one[1]))[:_MAX_NAMES])

        def named(tree: str) -> Iterator[tuple[str, str, str]]:
            for path, line in store.lines_with(names, tree) if names else ():
                yield from (
                    (path, name, one) for name in names if name in line for one in names[name]
                )

        for path, _, one in named(tree):
            # Rust can load no code of other languages.
            is_fit = path.endswith(".rs") or not _LOADED.fullmatch(one)
            if is_fit and path not in self.hidden and not self.looks_like_tests(path):
                kept.add(one)
        for path, name, one in named(store.base.tree):
            if one.endswith(f"/{name}") and (self.looks_like_tests(path) or is_test_config(path)):
                kept.discard(one)
        return kept

    def _is_known(self, folder: str) -> bool:
        return folder in self._base_modules or any(
            path.startswith(f"{folder}/") for path in self.hidden
        )

    def _is_test(self, path: str) -> bool:
        return path in self.hidden or bool(_TEST_NAME.fullmatch(path))


def _imports(path: str, line: str, unit: str) -> bool:
    """Whether a line of the file at `path` imports something of a unit, which is a path without its ending."""
    folder = path.rpartition("/")[0]
    places = [unit] if line.strip(" \t,") == unit.rpartition("/")[2] else []  # in a list of imports
    if not path.endswith((".py", ".pyi")):
        quoted = re.findall(r"""["']([^"'\s]+)["']""", line)
        places = [normpath(f"{folder}/{text}") if text.startswith(".") else text for text in quoted]
    elif found := re.match(r"\s*+(?:from\s++(\.*+)([\w.]*+)\s++)?import\s+\(?(.*)", line):
        dots = len(found[1] or "")
        root = normpath("/".join([folder or ".", *[".."] * (dots - 1)])) if dots else "."
        for word in found[3].split(","):
            names = [part.replace(".", "/") for part in (found[2] or "", *word.split()[:1]) if part]
            places.append("/".join(names if root == "." else [root, *names]))
    # Code that does not import by relative paths names what it imports from some root on.
    parts = unit.split("/")
    end = "/".join(parts[-1:] if len(parts) == 1 or parts[-2] in _ROOTS else parts[-2:])
    is_go = path.endswith(".go")  # there the module's own name comes first
    pattern = rf"(?<![^/])(?={re.escape(end)}(?:{'/' if is_go else '[/.]'}|$))"
    return any(
        is_go or f"/{unit}".endswith(f"/{place[: match.start() + len(end)]}")
        for place in places
        for match in re.finditer(pattern, place)
    )


def drop_protected_files(patch: bytes | None, side: ProtectedFiles, store: TreeStore) -> Applied:
    """Is it a patch, does it apply, and what of it is judged? One that is too much for git does not apply."""
    try:
        return _judged(patch, side, store)
    except GitError as error:
        return Applied("failed", error=f"the patch does not apply: {store.blamed(error)}")


def _judged(patch: bytes | None, side: ProtectedFiles, store: TreeStore) -> Applied:
    applied = store.apply(patch)
    if applied.status != "applied":
        return applied
    changes = store.changes(applied.tree)
    dropped = [
        DroppedFile(path, reason)
        for path, change in changes.items()
        if (reason := _reason_to_drop(path, change, side, store))
    ]
    tree = applied.tree
    tests = [file.path for file in dropped if file.reason == "test_file"]
    library = side.library_part(tests, tree, store) if tests else set()
    new = [path for path in tests if changes[path].before is None and not path.endswith(".rs")]
    files = [path for path in new if (entry := changes[path].after) and entry.mode == FILE]
    library |= side.data_part(files, tree, store)
    dropped = [file for file in dropped if file.path not in library]
    if dropped:
        tree = store.edited(
            tree, {file.path: _left_of(file, changes[file.path], store) for file in dropped}
        )
    if tree == store.base.tree:
        error = "nothing is left of the patch without test files"
        return Applied("empty", tree, error, dropped=tuple(dropped))
    return Applied("applied", tree, "", store.patch_of(tree), tuple(dropped))


def _reason_to_drop(
    path: str, change: Change, side: ProtectedFiles, store: TreeStore
) -> Reason | None:
    reason = side.reason_to_drop(path)
    if reason is None and change.after and change.after.mode == LINK and path not in side.golden:
        # It may stand for a folder: of tests, of installed packages, of a Python package.
        reason = side.reason_to_drop(f"{path}/__init__.py")
    if reason or path in side.golden or not may_hold_test_config(path):
        return reason
    return "test_config" if _config_changes(path, change, store) else None


def _config_changes(path: str, change: Change, store: TreeStore) -> bool:
    return config_differs(path, store.content(change.before), store.content(change.after))


def _left_of(file: DroppedFile, change: Change, store: TreeStore) -> TreeEntry | bytes | None:
    """What was there before, with changes of its that have nothing to do with tests."""
    is_file = (
        change.after is not None and change.after.mode == FILE and may_hold_test_config(file.path)
    )
    if file.reason != "test_config" or not is_file:
        return change.before
    restored = without_test_config(
        file.path, store.content(change.before), store.content(change.after)
    )
    return change.before if restored is None else restored


def applied_tests(tests: bytes, feature: Feature, store: TreeStore) -> tuple[str, str]:
    """The tree that hidden tests make, empty where they do not apply, and that below: they may build on the feature."""
    if tree := store.apply(tests).tree:
        return tree, store.base.tree
    golden = store.apply(feature.patch.read_bytes()).tree
    return store.apply(tests, golden).tree if golden else "", golden


def feature_paths(feature: Feature, store: TreeStore) -> tuple[frozenset[str], frozenset[str]]:
    """What hidden tests and golden patch touch; nothing of a patch that does not apply."""
    golden = store.apply(feature.patch.read_bytes()).tree
    tree, since = applied_tests(feature.tests.read_bytes(), feature, store)
    hidden = store.changes(tree, since) if tree else ()
    changes = store.changes(golden).items() if golden else ()
    ours = {
        path
        for path, one in changes
        if not may_hold_test_config(path) or _config_changes(path, one, store)
    }
    return frozenset(hidden), frozenset(ours)


def is_test_config(path: str) -> bool:
    """Whether a file is test-runner configuration by its name alone, wherever it lies."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in _CONFIG_NAMES) or bool(
        _CONFIG_PATHS.fullmatch(path)
    )


def may_hold_test_config(path: str) -> bool:
    """Whether `config_differs` has to look into it: a file that carries real work, too."""
    name = path.rpartition("/")[2]
    return name in _TEST_PARTS or any(fnmatchcase(name, pattern) for pattern in _TEST_CODE)


def config_differs(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Whether the test-runner part of a file differs; None where the file is absent."""
    if before == after or not may_hold_test_config(path):
        return False
    now, then = _test_part(path, after or b""), _test_part(path, before or b"")
    return now is None or (bool(now) if then is None else now != then)


def _test_part(path: str, content: bytes) -> object:
    """Empty where there is none; None where that cannot be told."""
    name = path.rpartition("/")[2]
    for pattern, mentions in _TEST_CODE.items():
        if fnmatchcase(name, pattern):
            return content if re.search(mentions, content) else b""
    read: dict[str, Callable[[bytes], object]] = {"setup.cfg": _ini, "package.json": json.loads}
    try:
        document = read.get(name, _toml)(content) if content else {}
        if not isinstance(document, dict):
            return None
        return {
            place: value for place, value in _leaves(document) if re.match(_TEST_PARTS[name], place)
        }
    except _UNREADABLE:
        return None


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """All values in a document by their places. Of tables in a list, the names are part of the place."""
    for key, value in table.items():
        place = f"{above}{key}"
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            value = {str(one.get("name", number)): one for number, one in enumerate(value)}
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{place}/")
        elif value is not None:
            yield place, value


def _ini(content: bytes) -> dict[str, Any]:
    parser = RawConfigParser(strict=False, default_section="\0")
    # The parser takes time quadratic in blanks inside a line.
    text = re.sub(r"(?<=\S)[^\S\n]+", " ", content.decode("utf-8-sig"))
    parser.read_string(text)
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _toml(content: bytes) -> dict[str, Any]:
    # The parser takes time quadratic in the length of a key.
    if any(len(line) > _MAX_TOML_LINE_LENGTH for line in content.split(b"\n")):
        raise ValueError("a line is too long")
    return tomllib.loads(content.decode("utf-8"))


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
    scripts = {
        key: value for key, value in after.get("scripts", {}).items() if not _TEST_SCRIPT.match(key)
    }
    scripts |= {
        key: value for key, value in before.get("scripts", {}).items() if _TEST_SCRIPT.match(key)
    }
    document = {key: value for key, value in after.items() if key not in _PACKAGE_RUNNERS}
    document |= {key: value for key, value in before.items() if key in _PACKAGE_RUNNERS}
    return (
        json.dumps(document | ({"scripts": scripts} if scripts else {}), indent=2).encode() + b"\n"
    )


def _sections(content: bytes) -> list[bytes]:
    return re.split(rb"^(?=\[)", content, flags=re.MULTILINE)
