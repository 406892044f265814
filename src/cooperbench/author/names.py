"""Names in patches: those that a golden patch introduces, and those that hidden tests use.

Only the patches are read, because the base may be in an image. Each hunk is parsed by itself;
tree-sitter copes with fragments. A name is new if it is on an added line and on no other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import PurePosixPath
from textwrap import dedent
from typing import Literal, NamedTuple

from tree_sitter import Node

from cooperbench.diff import ChangedFile, Hunk, parse_diff
from cooperbench.eval.canaries.syntax import descendants, parse
from cooperbench.patch_symbols import changed_lines

UseKind = Literal["call", "import", "argument", "use"]
_GRAMMARS = {
    ".py": "python",
    ".pyi": "python",
    ".js": "javascript",
    ".jsx": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".mts": "typescript",
    ".cts": "typescript",
    ".tsx": "tsx",
    ".go": "go",
    ".rs": "rust",
}
_DEFINING = {
    "function_definition": "name",
    "class_definition": "name",
    "default_parameter": "name",
    "typed_default_parameter": "name",
    "function_declaration": "name",
    "generator_function_declaration": "name",
    "class_declaration": "name",
    "abstract_class_declaration": "name",
    "interface_declaration": "name",
    "type_alias_declaration": "name",
    "enum_declaration": "name",
    "method_definition": "name",
    "method_signature": "name",
    "property_signature": "name",
    "field_definition": "property",
    "public_field_definition": "name",
    "variable_declarator": "name",
    "method_declaration": "name",
    "method_elem": "name",
    "type_spec": "name",
    "const_spec": "name",
    "var_spec": "name",
    "field_declaration": "name",
    "function_item": "name",
    "function_signature_item": "name",
    "struct_item": "name",
    "enum_item": "name",
    "enum_variant": "name",
    "trait_item": "name",
    "const_item": "name",
    "static_item": "name",
    "type_item": "name",
    "mod_item": "name",
    "macro_definition": "name",
}
"""Nodes that define a name, in all languages, and the field that holds it."""
_LOCAL_IN_FUNCTIONS = {"variable_declarator", "const_spec", "var_spec"}
_FUNCTIONS = {
    "function_definition",
    "function_declaration",
    "method_definition",
    "method_declaration",
    "arrow_function",
    "function_expression",
    "function_item",
    "func_literal",
}
_IDENTIFIERS = {
    "identifier",
    "property_identifier",
    "shorthand_property_identifier",
    "shorthand_property_identifier_pattern",
    "field_identifier",
    "type_identifier",
}
_CALLS = {"call", "call_expression", "new_expression", "macro_invocation"}
_MEMBERS = {
    "attribute",
    "member_expression",
    "selector_expression",
    "field_expression",
    "scoped_identifier",
    "scoped_type_identifier",
}
_IMPORTS = {
    "import_statement",
    "import_from_statement",
    "import_specifier",
    "use_declaration",
}
_ARGUMENTS = {
    "keyword_argument",
    "pair",
    "field_initializer",
    "literal_element",  # the key of a Go struct
}
_IMPORT_DEPTH = 4
"""Nodes between an imported name and its import statement."""
_STRINGS = {
    "string",
    "template_string",
    "interpreted_string_literal",
    "raw_string_literal",
    "string_literal",
}
_QUOTES = re.compile(r"""^[a-zA-Z]{0,2}#*(?:\"{3}|'{3}|["'`])|(?:\"{3}|'{3}|["'`])#*$""")
_NOT_A_NAME = re.compile(r"_.*|.|self|cls|test_?.*|Test.*")
"""Names that are private, too short to mean anything, or those of tests."""
_OPTION = re.compile(r"--?[A-Za-z][\w-]+")
_MIN_TEXT_CHARACTERS = 8


class NewName(NamedTuple):
    """A name that a golden patch introduces."""

    name: str
    label: str
    """The name with its class in front, as far as the patch shows it: `Context.tell`."""
    signature: str
    """The line that defines it; empty for an attribute or a module."""


class NameUse(NamedTuple):
    """A use of a name in added lines of tests."""

    name: str
    kind: UseKind


@dataclass
class PatchNames:
    """Names and texts in the code of a patch."""

    defined: dict[str, NewName] = field(default_factory=dict)
    """New definitions on added lines, by name."""
    uses: list[NameUse] = field(default_factory=list)
    """Uses on added lines, each once."""
    texts: set[str] = field(default_factory=set)
    """Strings on added lines."""
    known: set[str] = field(default_factory=set)
    """Identifiers and strings on lines that are not added: they exist in the base."""


class _Fragment(NamedTuple):
    """The new version of a hunk."""

    path: str
    lines: list[str]
    added: list[bool]
    """Whether each line is added."""
    symbols: list[str]
    """What each line is in: `Context.tell`; empty for lines that are not added."""


def read_names(patch: bytes) -> PatchNames:
    """Return the names in the code of a patch; none if it is not a diff."""
    names = PatchNames()
    try:
        files = parse_diff(patch)
    except ValueError:
        return names
    symbols = {line.patch_line: line.symbol for line in changed_lines(files)}
    for file in files:
        grammar = _GRAMMARS.get(PurePosixPath(file.path).suffix)
        if grammar is None:
            continue
        if file.old_path is None:
            _add_module(names, file)
        for hunk in file.hunks:
            _read_fragment(names, _new_side(file.path, hunk, symbols), grammar)
            _read_removed_lines(names, hunk)
    for name in names.known & names.defined.keys():
        del names.defined[name]
    return names


def _add_module(names: PatchNames, file: ChangedFile) -> None:
    path = PurePosixPath(file.path)
    if path.stem not in ("__init__", "index", "mod", "lib", "main"):
        _define(names, NewName(path.stem, path.stem, ""))


def _new_side(path: str, hunk: Hunk, symbols: dict[int, str]) -> _Fragment:
    lines: list[str] = []
    added: list[bool] = []
    line_symbols: list[str] = []
    for patch_line, line in enumerate(hunk.lines, hunk.patch_line):
        if line.startswith(("-", "\\")):
            continue
        lines.append(line[1:])
        added.append(line.startswith("+"))
        line_symbols.append(symbols.get(patch_line, ""))
    return _Fragment(path, lines, added, line_symbols)


def _read_removed_lines(names: PatchNames, hunk: Hunk) -> None:
    for line in hunk.lines:
        if line.startswith("-"):
            names.known.update(re.findall(r"\w+", line))


def _read_fragment(names: PatchNames, fragment: _Fragment, grammar: str) -> None:
    # A fragment may begin inside a class: Python's grammar wants its first lines at the margin.
    source = dedent("\n".join(fragment.lines)).encode("utf-8", "replace")
    # Rows are counted here: reading `Node.start_point` often crashes tree-sitter 0.26.
    line_ends = list(accumulate(len(line) + 1 for line in source.split(b"\n")))
    for node in descendants(parse(source, grammar)):
        row = bisect_right(line_ends, node.start_byte)
        if row < len(fragment.added) and fragment.added[row]:
            _read_added_node(names, node, row, fragment)
        elif node.type in _IDENTIFIERS:
            names.known.add(_text(node))
        elif node.type in _STRINGS:
            names.known.add(_string_content(node))


def _read_added_node(names: PatchNames, node: Node, row: int, fragment: _Fragment) -> None:
    name_node = _defined_name_node(node)
    if name_node is not None:
        _define(names, _new_name(name_node, row, fragment))
    if node.type in _IDENTIFIERS:
        kind = _use_kind(node)
        use = NameUse(_text(node), kind) if kind else None
        if use and use not in names.uses and not _NOT_A_NAME.fullmatch(use.name):
            names.uses.append(use)
    elif node.type in _STRINGS:
        names.texts.add(_string_content(node))


def _define(names: PatchNames, new_name: NewName) -> None:
    if not new_name.name or _NOT_A_NAME.fullmatch(new_name.name):
        return
    earlier_name = names.defined.get(new_name.name)
    # A function may have the name of its module.
    if earlier_name is None or (new_name.signature and not earlier_name.signature):
        names.defined[new_name.name] = new_name


def _new_name(node: Node, row: int, fragment: _Fragment) -> NewName:
    name = _text(node)
    symbol = fragment.symbols[row]
    scope, _, last = symbol.rpartition(".")
    if last == name:
        return NewName(name, symbol, _signature(fragment.lines, row))
    owner = scope if node.parent is not None and node.parent.type == "attribute" else ""
    return NewName(name, f"{owner}.{name}" if owner else name, "")


def _signature(lines: Sequence[str], row: int) -> str:
    """Return the line of a definition, with the lines that its brackets go on for."""
    collected = ""
    for line in lines[row : row + 20]:
        collected = f"{collected} {line.strip()}".strip()
        if collected.count("(") <= collected.count(")"):
            break
    return re.sub(r"\s*[:{]$", "", collected)


def _defined_name_node(node: Node) -> Node | None:
    """Return the name that a node defines for others; None if it defines none."""
    if node.type == "assignment":
        return _assigned_name_node(node)
    if node.type in _LOCAL_IN_FUNCTIONS and _is_in_function(node):
        return None
    if node.type == "shorthand_property_identifier_pattern":
        return node
    if node.type in ("identifier", "typed_parameter"):
        is_parameter = node.parent is not None and node.parent.type == "parameters"
        name_node = node.named_children[0] if node.named_children else node
        return name_node if is_parameter else None
    field_name = _DEFINING.get(node.type)
    return node.child_by_field_name(field_name) if field_name else None


def _assigned_name_node(assignment: Node) -> Node | None:
    """Return the attribute of `self`, or the name outside of functions, that Python assigns."""
    left = assignment.child_by_field_name("left")
    if left is None:
        return None
    owner = left.child_by_field_name("object")
    if owner is not None:
        return left.child_by_field_name("attribute") if _text(owner) == "self" else None
    if left.type != "identifier" or _is_in_function(assignment):
        return None
    return left


def _is_in_function(node: Node) -> bool:
    return any(ancestor.type in _FUNCTIONS for ancestor in _ancestors(node))


def _ancestors(node: Node) -> Iterator[Node]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _use_kind(node: Node) -> UseKind | None:
    """Return how an identifier uses a name that is defined elsewhere; None for a local name."""
    nearest = list(islice(_ancestors(node), _IMPORT_DEPTH))
    if not nearest:
        return None
    if any(ancestor.type in _IMPORTS for ancestor in nearest):
        return "import"
    parent = nearest[0]
    is_first = parent.named_children[:1] == [node]
    kind: UseKind | None = None
    if parent.type == "token_tree":  # arguments of a Rust macro, which are not parsed
        kind = _kind_in_macro(node)
    elif parent.type in _MEMBERS:
        kind = _kind_of_member(node, parent)
    elif parent.type in _CALLS and is_first:
        kind = "call"
    elif parent.type in _ARGUMENTS and is_first:
        kind = "argument"
    elif node.type == "type_identifier":
        kind = "use"
    return kind


def _kind_of_member(node: Node, member: Node) -> UseKind | None:
    """Return how an identifier in `object.member` uses a name; only the last is a member."""
    if member.named_children[-1] != node:
        return None
    call = member.parent
    is_called = call is not None and call.type in _CALLS and call.named_children[0] == member
    return "call" if is_called else "use"


def _kind_in_macro(node: Node) -> UseKind | None:
    before, after = node.prev_sibling, node.next_sibling
    if before is None or before.type not in (".", "::"):
        return None
    is_called = after is not None and after.type == "token_tree" and _text(after).startswith("(")
    return "call" if is_called else "use"


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _string_content(node: Node) -> str:
    return _QUOTES.sub("", _QUOTES.sub("", _text(node), count=1))


class MissingName(NamedTuple):
    """Something that tests use, only the golden patch defines, and a text does not mention."""

    kind: UseKind | Literal["text"]
    name: NewName


def missing_names(golden: bytes, tests: bytes, text: str) -> list[MissingName]:
    """Return what an agent that reads only `text` cannot know, but the tests need."""
    golden_names, test_names = read_names(golden), read_names(tests)
    existing_names = golden_names.known | test_names.known
    missing: dict[str, MissingName] = {}
    for use in test_names.uses:
        new_name = golden_names.defined.get(use.name)
        if new_name is None or use.name in existing_names or use.name in missing:
            continue
        if not is_mentioned(use.name, text):
            missing[use.name] = MissingName(use.kind, new_name)
    for content in sorted(golden_names.texts & test_names.texts - existing_names):
        if _is_interface_text(content) and content not in text:
            missing[content] = MissingName("text", NewName(content, content, ""))
    return list(missing.values())


def is_mentioned(name: str, text: str) -> bool:
    """Whether a text has a name as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _is_interface_text(content: str) -> bool:
    """Whether a string is an option of a command line, or a message that can be compared."""
    if _OPTION.fullmatch(content):
        return True
    is_one_line = "\n" not in content.strip()
    return is_one_line and len(content) >= _MIN_TEXT_CHARACTERS and len(content.split()) > 1
