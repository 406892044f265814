"""Library code and data that only look like tests, such as a module `testing/test_client.py`.

They are kept in an agent's patch. A file belongs to the library if code that is not a test imports
it, or names it as data. A new module also belongs to it if such code names it in another way: for
`importlib`, as an entry point, in a list of plugins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from cooperbench.eval.module_names import imports, is_named, names_alone
from cooperbench.eval.protected_paths import (
    CRATE_SOURCE,
    TEST_FOLDER,
    ProtectedFiles,
    looks_like_test,
)
from cooperbench.eval.test_config import is_test_config, may_hold_test_config
from cooperbench.eval.trees import CODE_FILE, TreeStore

_MAX_UNITS = 30
"""Maximum number of units that are searched for. A patch with more has copied packages."""
_MAX_NAMES = 100
"""Maximum number of names of data files that are searched for."""
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
_MODULE_ENDING = re.compile(r"\.(?:pyi?|[cm]?[jt]sx?)$")
_NAMES_MODULES = re.compile(
    r"\.(?:pyi?|go|[cm]?[jt]sx?)$ | (?:^|/)(?:pyproject\.toml|setup\.cfg|package\.json)$",
    re.VERBOSE,
)
"""Files that can name a module of Python or JavaScript."""
_ANY_FILE = re.compile("")
_LOADERS = (
    *("import_module", "__import__", "pkgutil", "runpy"),
    *("spec_from_file_location", "SourceFileLoader"),
)
"""Names with which Python code loads modules that it need not name."""
_PYTHON_TEST = re.compile(
    rb"""
    ^[ \t\f]*+ (?: async[ ]+ )? def[ ]+ test
    | ^[ \t\f]*+ class[ ]+ Test
    | \b (?: TestCase | doctest | load_tests ) \b
    | ^[ \t\f]*+ (?: import | from ) [ ]+ (?: pytest | unittest ) \b
    """,
    re.MULTILINE | re.VERBOSE,
)


def find_imported_files(
    paths: Iterable[str], tree: str, protected: ProtectedFiles, store: TreeStore
) -> set[str]:
    """Return those of these files, which look like tests, that library code imports or names.

    Files in one test folder are one unit; every other module of Python or JavaScript is a unit of
    its own.
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
        elif _MODULE_ENDING.search(path):
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
    module = _MODULE_ENDING.sub("", unit)
    if existing or unit in protected.base:
        # Only importers in the base count: an agent could add an import.
        importers = _files_that_import(module, _lines_with_name(module, store.base.tree, store))
    elif protected.shadows_module(unit):
        importers = set()
    else:
        lines = _lines_with_name(module, tree, store)
        importers = _files_that_import(module, lines)
        importers |= _files_that_name(unit, module, lines, tree, store)
    return importers - protected.hidden


def _lines_with_name(module: str, tree: str, store: TreeStore) -> list[tuple[str, str]]:
    """Return path and text of the lines that contain the last part of a module's name."""
    return list(store.lines_with([module.rpartition("/")[2]], tree, _ANY_FILE))


def _files_that_import(module: str, lines: Iterable[tuple[str, str]]) -> set[str]:
    importers = set()
    for path, line in lines:
        is_searched = CODE_FILE.search(path) and not path.endswith(".rs")
        if is_searched and imports(path, line, module):
            importers.add(path)
    return importers


def _files_that_name(
    unit: str, module: str, lines: Iterable[tuple[str, str]], tree: str, store: TreeStore
) -> set[str]:
    """Return the files that name a new module as text, or that load modules of its package.

    Where they do not name its package too, it counts only if it has no tests.
    """
    is_file = unit != module
    may_be_loaded = is_file and _is_python_without_tests(unit, tree, store)
    files = set()
    for path, line in lines:
        if not _NAMES_MODULES.search(path):
            continue
        # JavaScript that names a folder may only read it.
        names_module = (is_file or path.endswith(".py")) and is_named(path, line, module)
        if names_module or (may_be_loaded and names_alone(path, line, module)):
            files.add(path)
    if may_be_loaded and "/" in unit:
        package = unit.partition("/")[0]
        for path in _files_with_loaders(tree, store):
            if path.partition("/")[0] == package:
                files.add(path)
    return files


@lru_cache(maxsize=4)
def _files_with_loaders(tree: str, store: TreeStore) -> frozenset[str]:
    """Return the Python files that load modules by names that they need not contain."""
    lines = store.lines_with(_LOADERS, tree)
    return frozenset(path for path, _ in lines if path.endswith(".py"))


def _is_python_without_tests(path: str, tree: str, store: TreeStore) -> bool:
    change = store.changes(tree).get(path)
    content = store.content(change.after) if change else None
    return path.endswith(".py") and content is not None and not _PYTHON_TEST.search(content)


def _paths_in(folder: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.startswith(f"{folder}/")]


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
