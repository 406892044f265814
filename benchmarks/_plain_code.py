"""Counts of what makes readers stumble: vague names, fragments, nesting, long functions.

Needs only the standard library. `count_findings` returns counts, which `size.py` prints per 1,000
lines; `python benchmarks/_plain_code.py KIND` lists the places of one kind.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCE = Path(__file__).resolve().parents[1] / "src" / "cooperbench"
MAX_LINE_LENGTH = 100
MAX_FUNCTION_LINES = 50
MAX_COMPLEXITY = 10
MAX_PATTERN_LENGTH = 120
MAX_PARAMETERS = 8
TARGETS: dict[str, float | None] = {
    "vague name": 1.0,
    "docstring is a fragment": 0.3,
    "nested comprehension": 1.0,
    "complexity over 10": 1.5,
    "untyped dict": 3.0,
    "loop over a conditional expression": 0.0,
    "arithmetic with truth values": 0.0,
    "nested conditional expression": 0.0,
    "long pattern that is not verbose": 0.0,
    "line over 100 characters": 0.0,
    "function over 50 lines": 0.5,
    "public function without docstring": None,
    "getattr by a fixed name": None,
    "more than 8 parameters": None,
}
"""Findings per 1,000 lines that are still fine, or None where there is no limit."""
VAGUE_NAMES = frozenset(
    [
        "again",
        "asked",
        "at",
        "both",
        "by",
        "each",
        "found",
        "given",
        "here",
        "how",
        "known",
        "left",
        "made",
        "meant",
        "more",
        "of",
        "one",
        "ones",
        "place",
        "places",
        "rest",
        "said",
        "shown",
        "them",
        "there",
        "thing",
        "things",
        "told",
        "wanted",
        "what",
        "whose",
        "words",
    ]
)
FRAGMENT_STARTS = frozenset(
    [
        "Also",
        "And",
        "As",
        "At",
        "Be",
        "But",
        "By",
        "From",
        "Nobody",
        "Not",
        "Nothing",
        "Of",
        "Only",
        "Or",
        "So",
        "That",
        "Those",
        "What",
        "Where",
        "Which",
        "Who",
        "Whose",
        "With",
        "Without",
    ]
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTIONS, ast.ClassDef, ast.Module)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)


class Finding(NamedTuple):
    """A place in the code that takes a second reading."""

    kind: str
    path: Path
    line: int
    text: str


def source_files() -> list[Path]:
    """Return the modules of the package, without the tasks of the demo."""
    demo = SOURCE / "dataset" / "demo"
    return [path for path in sorted(SOURCE.rglob("*.py")) if not path.is_relative_to(demo)]


def count_findings(paths: Iterable[Path]) -> Counter[str]:
    """Return how often each kind is found in some modules."""
    counts: Counter[str] = Counter()
    for path in paths:
        counts.update(finding.kind for finding in find_in_module(path))
    return counts


def find_in_module(path: Path) -> Iterator[Finding]:
    """Yield every finding in a module."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_LENGTH:
            yield Finding("line over 100 characters", path, number, line.strip())
    for node in ast.walk(ast.parse(text)):
        for kind in _kinds_of(node):
            number = getattr(node, "lineno", 1)
            yield Finding(kind, path, number, lines[number - 1].strip() if lines else "")


def _kinds_of(node: ast.AST) -> Iterator[str]:
    if _is_vague_name(node):
        yield "vague name"
    if isinstance(node, DOCUMENTED) and _has_fragment_docstring(node):
        yield "docstring is a fragment"
    if isinstance(node, FUNCTIONS):
        yield from _kinds_of_function(node)
    if isinstance(node, COMPREHENSIONS) and _is_nested(node):
        yield "nested comprehension"
    if isinstance(node, ast.IfExp) and _contains(node, ast.IfExp):
        yield "nested conditional expression"
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.IfExp):
        yield "loop over a conditional expression"
    if _is_truth_arithmetic(node):
        yield "arithmetic with truth values"
    if isinstance(node, ast.Subscript) and _is_untyped_dict(node):
        yield "untyped dict"
    if isinstance(node, ast.Call):
        yield from _kinds_of_call(node)


def _kinds_of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    last_line = function.end_lineno or function.lineno
    if last_line - function.lineno + 1 > MAX_FUNCTION_LINES:
        yield "function over 50 lines"
    if _complexity(function) > MAX_COMPLEXITY:
        yield "complexity over 10"
    if not function.name.startswith("_") and not ast.get_docstring(function):
        yield "public function without docstring"
    parameters = function.args
    count = len(parameters.posonlyargs) + len(parameters.args) + len(parameters.kwonlyargs)
    if count > MAX_PARAMETERS:
        yield "more than 8 parameters"


def _kinds_of_call(call: ast.Call) -> Iterator[str]:
    if _is_long_pattern(call):
        yield "long pattern that is not verbose"
    probes = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
    if probes and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
        yield "getattr by a fixed name"


def _is_vague_name(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    return isinstance(node, ast.arg) and node.arg in VAGUE_NAMES


def _has_fragment_docstring(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module,
) -> bool:
    docstring = ast.get_docstring(node) or ""
    first_word = re.match(r"\w*", docstring)
    starts_badly = first_word is not None and first_word[0] in FRAGMENT_STARTS
    return starts_badly or docstring.startswith("The same")


def _complexity(function: ast.AST) -> int:
    """Return the cyclomatic complexity of a function, without functions inside of it."""
    total = 1
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        pending.extend(ast.iter_child_nodes(node))
    return total


def _contains(node: ast.AST, kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> bool:
    """Return whether one of these kinds is somewhere below a node."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def _is_nested(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
    return len(node.generators) > 1 or _contains(node, COMPREHENSIONS)


def _is_truth(node: ast.expr) -> bool:
    """Return whether an expression is surely True or False."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare)


def _is_truth_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        return _is_truth(node.left) or _is_truth(node.right)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        return _is_truth(node.value)
    return False


def _is_untyped_dict(node: ast.Subscript) -> bool:
    return ast.unparse(node) in ("dict[str, Any]", "Mapping[str, Any]")


def _is_long_pattern(call: ast.Call) -> bool:
    if ast.unparse(call.func) != "re.compile" or "VERBOSE" in ast.unparse(call):
        return False
    length = 0
    for node in ast.walk(call):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            length += len(node.value)
    return length > MAX_PATTERN_LENGTH


def main(kind: str) -> None:
    """List the places of one kind."""
    for path in source_files():
        for finding in find_in_module(path):
            if finding.kind == kind:
                shown = finding.path.relative_to(SOURCE)
                print(f"{shown}:{finding.line}: {finding.text[:MAX_LINE_LENGTH]}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: {sys.argv[0]} KIND\nkinds: {', '.join(TARGETS)}")
    main(sys.argv[1])
