"""Library code and data that only look like tests, such as a module `testing/test_client.py`.

They are kept in an agent's patch. A file belongs to the library if code that is not a test imports
it, or names it as data.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from posixpath import normpath

from cooperbench.eval.protected_paths import (
    CRATE_SOURCE,
    TEST_FOLDER,
    ProtectedFiles,
    looks_like_test,
)
from cooperbench.eval.test_config import is_test_config, may_hold_test_config
from cooperbench.eval.trees import TreeStore

_MAX_UNITS = 30
"""Maximum number of units that are searched for. A patch with more has copied packages."""
_MAX_NAMES = 100
"""Maximum number of names of data files that are searched for."""
_SOURCE_ROOTS = ("src", "lib")
_FOUND_BY_TOOLS = re.compile(
    r"""
    (?: .*/ )?
    (?: \.[^/]* | \.[^/]*/.*                        # hidden files and folders
      | __(?:mocks|tests|snapshots)__/.*            # Jest, Vitest
      | mocha\.opts
      | test[^/]*\.(?:txt|rst)                      # doctests
      | [^/]*\.config\.[^/]* | [jt]sconfig[^/]*\.json
    )
    """,
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
"""Files other than code that test tools look for."""
_LOADABLE = re.compile(
    r".*\.(?:pyi?|[cm]?[jt]sx?|go|typ|rb|sh|bash|snap)", re.DOTALL | re.IGNORECASE
)
"""Code and snapshots that tests could load."""
_PYTHON_IMPORT = re.compile(
    r"""
    \s*+ (?: from \s++ (?P<dots> \.*+ ) (?P<package> [\w.]*+ ) \s++ )?
    import \s+ \(? (?P<names> .* )
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(r"""["']([^"'\s]+)["']""")


def find_imported_files(
    paths: Iterable[str], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return those of these files, which look like tests, that library code imports.

    Files in one test folder are one unit; every other Python file is a unit of its own.
    """
    units = _group_units(paths)
    importers = {}
    for unit in sorted(units, key=len)[:_MAX_UNITS]:
        importers[unit] = _importers(unit, units[unit], tree, protected, store)

    library: set[str] = set()

    def is_imported_by_library(unit: str) -> bool:
        for path in importers[unit]:
            if path in library or path in protected.golden or not looks_like_test(path):
                return True
        return False

    # A unit that belongs to the library may import others, so repeat until nothing changes.
    pending = list(importers)
    while True:
        imported = [unit for unit in pending if is_imported_by_library(unit)]
        if not imported:
            return library
        for unit in imported:
            library.update(units[unit])
            pending.remove(unit)


def _group_units(paths: Iterable[str]) -> dict[str, list[str]]:
    units: dict[str, list[str]] = {}
    for path in paths:
        folder = TEST_FOLDER.match(path)
        if folder:
            units.setdefault(folder[0], []).append(path)
        elif path.endswith((".py", ".pyi")):
            units.setdefault(path, []).append(path)
    return units


def _importers(
    unit: str, changed: Sequence[str], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return the files that import something of a unit: a file, or a folder without tests.

    If a golden patch changes files in a folder, they count as importers.
    """
    existing = _paths_in(unit, (*protected.base, *protected.hidden))
    is_folder = unit not in changed
    if is_folder and "/" not in unit:
        return set()
    if is_folder and any(protected.is_test(path) for path in (*existing, *changed)):
        return set()
    golden = _paths_in(unit, protected.golden)
    if golden:
        return set(golden)
    # For a unit of the base only importers in the base count: an agent could add an import.
    is_new = not existing and unit not in protected.base
    searched_tree = tree if is_new else store.base.tree
    module = re.sub(r"\.pyi?$", "", unit)
    name = module.rpartition("/")[2]
    importers = set()
    for path, line in store.lines_with([name], searched_tree):
        if not path.endswith(".rs") and imports(path, line, module):
            importers.add(path)
    return importers - protected.hidden


def _paths_in(folder: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.startswith(f"{folder}/")]


def imports(path: str, line: str, module: str) -> bool:
    """Whether a line of the file at `path` imports from a module, a path without its ending."""
    if path.endswith((".py", ".pyi")):
        imported = _python_imports(path, line, module)
    else:
        imported = _quoted_paths(path, line)
    # Imports that are not relative name a path from some root on, so compare the last two parts.
    parts = module.split("/")
    has_short_name = len(parts) == 1 or parts[-2] in _SOURCE_ROOTS
    suffix = "/".join(parts[-1:] if has_short_name else parts[-2:])
    is_go = path.endswith(".go")  # in Go, an import starts with the name of the Go module
    end_of_name = "/" if is_go else "[/.]"
    pattern = re.compile(rf"(?<![^/])(?={re.escape(suffix)}(?:{end_of_name}|$))")
    for name in imported:
        for match in pattern.finditer(name):
            imported_module = name[: match.start() + len(suffix)]
            if is_go or f"/{module}".endswith(f"/{imported_module}"):
                return True
    return False


def _quoted_paths(path: str, line: str) -> list[str]:
    """Return the strings of a line, relative paths resolved."""
    folder = path.rpartition("/")[0]
    return [
        normpath(f"{folder}/{text}") if text.startswith(".") else text
        for text in _QUOTED.findall(line)
    ]


def _python_imports(path: str, line: str, module: str) -> list[str]:
    """Return the modules and names that a line imports, as paths."""
    imported = []
    is_in_import_list = line.strip(" \t,") == module.rpartition("/")[2]
    if is_in_import_list:
        imported.append(module)
    match = _PYTHON_IMPORT.match(line)
    if match is None:
        return imported
    root = "."
    dots = len(match["dots"] or "")
    if dots:
        folder = path.rpartition("/")[0] or "."
        root = normpath("/".join([folder, *[".."] * (dots - 1)]))
    for clause in match["names"].split(","):
        names = [match["package"] or "", *clause.split()[:1]]
        parts = [name.replace(".", "/") for name in names if name]
        if root != ".":
            parts.insert(0, root)
        imported.append("/".join(parts))
    return imported


def find_data_files(
    new_files: Iterable[str], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return those of these new files, which look like tests, that are data of the library.

    These are snapshots of a crate's own tests, files in a new folder, and files that code names
    but no test of the base does.
    """
    data: set[str] = set()
    files_by_name: dict[str, set[str]] = {}
    for path in new_files:
        if _FOUND_BY_TOOLS.fullmatch(path) or may_hold_test_config(path):
            continue
        if protected.shadows_module(path):
            continue
        if _is_data_by_path(path, protected):
            data.add(path)
        elif TEST_FOLDER.match(path) and (path.endswith(".snap") or not protected.is_test(path)):
            *folders, name = path.split("/")
            files_by_name.setdefault(name, set()).add(path)
            files_by_name.setdefault("/".join(folders[-2:]), set()).add(path)
    by_frequency = sorted(files_by_name, key=lambda name: len(files_by_name[name]), reverse=True)
    frequent = {name: files_by_name[name] for name in by_frequency[:_MAX_NAMES]}
    data |= _named_by_code(frequent, tree, protected, store)
    return data - _named_by_tests(frequent, store)


def _named_by_code(
    files_by_name: Mapping[str, set[str]], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return the files that code other than tests names."""
    named = set()
    for path, name in _mentions(files_by_name, tree, store):
        if path in protected.hidden or looks_like_test(path):
            continue
        for file in files_by_name[name]:
            # Rust cannot load code of other languages.
            if path.endswith(".rs") or not _LOADABLE.fullmatch(file):
                named.add(file)
    return named


def _named_by_tests(files_by_name: Mapping[str, set[str]], store: TreeStore) -> set[str]:
    """Return the files that tests of the base commit, or their configuration, name."""
    named = set()
    for path, name in _mentions(files_by_name, store.base.tree, store):
        if looks_like_test(path) or is_test_config(path):
            named |= {file for file in files_by_name[name] if file.endswith(f"/{name}")}
    return named


def _is_data_by_path(path: str, protected: ProtectedFiles) -> bool:
    folder = TEST_FOLDER.match(path)
    if path.endswith(".snap"):
        return bool(CRATE_SOURCE.match(folder[0] if folder else path))
    if folder is None or _LOADABLE.fullmatch(path):
        return False
    return not _is_known_folder(folder[0], protected)


def _is_known_folder(folder: str, protected: ProtectedFiles) -> bool:
    if folder in protected.base_modules:
        return True
    return any(path.startswith(f"{folder}/") for path in protected.hidden)


def _mentions(names: Collection[str], tree: str, store: TreeStore) -> Iterator[tuple[str, str]]:
    """Yield path and name for each line of code that contains one of these names."""
    if not names:
        return
    for path, line in store.lines_with(names, tree):
        for name in names:
            if name in line:
                yield path, name
