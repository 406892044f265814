"""Find the modules that a line of code imports, or names as text.

A module is a path without its ending, such as `pkg/plugins/text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from posixpath import normpath

_SOURCE_ROOTS = ("src", "lib")
_PYTHON_IMPORT = re.compile(
    r"""
    \s*+ (?: from \s++ (?P<dots> \.*+ ) (?P<package> [\w.]*+ ) \s++ )?
    import \s+ \(? (?P<names> .* )
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(r"""["'`]([^"'`\s]+)["'`]""")
_DOTTED = re.compile(r"(?<![\w./-])[A-Za-z_]\w*+(?:\.\w++)+")
_ENDING = re.compile(r"\.(?:pyi?|[cm]?[jt]sx?)$")
_FORMATTED_PACKAGE = re.compile(r"\$?\{[^{}]*\}(?=\.)")
"""The start of text such as `{__package__}.text`."""


def imports(path: str, line: str, module: str) -> bool:
    """Whether a line of the file at `path` imports from a module."""
    if path.endswith((".py", ".pyi")):
        imported = _python_imports(path, line, module)
    else:
        imported = _quoted_paths(path, line)
    return _includes(imported, module, is_go=path.endswith(".go"))


def is_named(path: str, line: str, module: str) -> bool:
    """Whether a line of the file at `path` has the dotted name or the path of a module as text.

    In configuration, names need no quotes.
    """
    return _includes(_named_modules(path, line), module)


def names_alone(path: str, line: str, module: str) -> bool:
    """Whether a line has only the last part of a module's name as text, in the same top folder."""
    folder, _, name = module.rpartition("/")
    if not folder or path.partition("/")[0] != folder.partition("/")[0]:
        return False
    return any(_ENDING.sub("", text) == name for text in _QUOTED.findall(line))


def _includes(names: Iterable[str], module: str, *, is_go: bool = False) -> bool:
    """Whether one of these paths is that of a module, or of something in it."""
    # Imports that are not relative name a path from some root on, so compare the last two parts.
    parts = module.split("/")
    has_short_name = len(parts) == 1 or parts[-2] in _SOURCE_ROOTS
    suffix = "/".join(parts[-1:] if has_short_name else parts[-2:])
    # In Go, an import starts with the name of the Go module.
    end_of_name = "/" if is_go else "[/.]"
    pattern = re.compile(rf"(?<![^/])(?={re.escape(suffix)}(?:{end_of_name}|$))")
    for name in names:
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
        root = _package_above(path, dots)
    for clause in match["names"].split(","):
        names = [match["package"] or "", *clause.split()[:1]]
        parts = [name.replace(".", "/") for name in names if name]
        if root != ".":
            parts.insert(0, root)
        imported.append("/".join(parts))
    return imported


def _package_above(path: str, dots: int) -> str:
    """Return the folder that relative names with so many dots begin at, for the file at `path`."""
    folder = path.rpartition("/")[0] or "."
    return normpath("/".join([folder, *[".."] * (dots - 1)]))


def _named_modules(path: str, line: str) -> Iterator[str]:
    """Yield the paths that the strings of a line may mean, as dotted names and as paths."""
    texts = _QUOTED.findall(line)
    if not _ENDING.search(path):
        texts += _DOTTED.findall(line)
    folder = path.rpartition("/")[0] or "."
    for text in texts:
        name = _FORMATTED_PACKAGE.sub("", text.partition(":")[0], count=1)
        stem = _ENDING.sub("", name)
        if "/" in name or stem != name:
            yield normpath(stem)
            yield normpath(f"{folder}/{stem}")
        dotted = stem.lstrip(".")
        dots = len(stem) - len(dotted)
        as_path = dotted.replace(".", "/")
        if dots:
            yield normpath(f"{_package_above(path, dots)}/{as_path}")
        else:
            yield as_path
