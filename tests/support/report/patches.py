"""The patches of synthetic logs: features that change functions of one file, far apart or on the same line."""

from __future__ import annotations

from difflib import unified_diff
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE_PATH = "src/app.py"
BASE_LINES = tuple(
    line
    for number in range(1, 25)
    for line in (f"def part_{number}(value):\n", f'    """Part {number}."""\n', f"    return value + {number}\n", "\n", "\n")
)  # fmt: skip
"""The file that all patches change, as it is at the base commit."""


@cache
def feature_patch(features: tuple[int, ...], numbers: tuple[int, ...]) -> bytes:
    """Features, each in the function of that number: the first one there takes the place of its last line."""
    changed: dict[int, list[str]] = {}
    for feature, number in zip(features, numbers, strict=True):
        changed.setdefault((number - 1) * 5 + 2, []).append(
            f"    return feature_{feature}(value)\n"
        )
    new = [line for place, old in enumerate(BASE_LINES) for line in changed.get(place, [old])]
    return git_patch(BASE_PATH, BASE_LINES, new)


def git_patch(path: str, old: Sequence[str], new: Sequence[str]) -> bytes:
    """As git prints it, with the enclosing function in each hunk's header."""
    lines = list(unified_diff(list(old), list(new), f"a/{path}", f"b/{path}"))
    for place, line in enumerate(lines):
        if line.startswith("@@"):
            first = int(line.split()[1][1:].split(",")[0])
            name = next(
                (one.rstrip() for one in reversed(old[: first - 1]) if one.startswith("def ")), ""
            )
            lines[place] = f"{line.rstrip()} {name}".rstrip() + "\n"
    header = f"diff --git a/{path} b/{path}\nindex 1111111..2222222 100644\n"
    return (header + "".join(lines)).encode()
