"""Where patches meet is where git cannot merge them; symbols are those that a reader sees in the hunks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.report.patches import Overlap, find_overlap, read_agent_patch
from tests.support.eval.realgit import RealRepo, text
from tests.support.report.patches import git_patch

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE = [f"line {number}\n" for number in range(1, 13)]


def overlap(ours: bytes | None, theirs: bytes | None) -> Overlap:
    return find_overlap(read_agent_patch("agent1", ours), read_agent_patch("agent2", theirs))


@st.composite
def edited(draw: st.DrawFn, side: str) -> list[str]:
    """Some lines replaced, inserted before or removed; what is new is new to both sides."""
    kinds = draw(
        st.lists(st.sampled_from("        ridx"), min_size=len(BASE) + 1, max_size=len(BASE) + 1)
    )
    lines: list[str] = []
    for number, (kind, line) in enumerate(zip(kinds, [*BASE, ""], strict=True)):
        new = f"{side} {number}\n"
        lines += {"r": [new], "i": [new, line], "d": [], "x": [f"both {number}\n", line]}.get(
            kind, [line]
        )
    return [line for line in lines if line]


@given(ours=edited("ours"), theirs=edited("theirs"))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_git_merges_what_does_not_meet(ours: list[str], theirs: list[str]) -> None:
    if BASE in (ours, theirs):
        return
    found = overlap(git_patch("a.txt", BASE, ours), git_patch("a.txt", BASE, theirs))
    with TemporaryDirectory() as folder:
        conflicts = merge_file(Path(folder), ours, theirs)
    if not found.files["a.txt"]:
        assert not conflicts
    if ours == theirs:
        assert found.files == {"a.txt": 0}


def merge_file(folder: Path, ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether git's three-way merge of the file fails."""
    for name, lines in (("ours", ours), ("base", BASE), ("theirs", theirs)):
        (folder / name).write_text("".join(lines))
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode != 0


def test_changes_name_the_lines_of_base_and_patch() -> None:
    ours = [*BASE[:3], "mine\n", *BASE[5:]]
    theirs = [*BASE[:4], "yours\n", *BASE[5:9], "new\n", *BASE[9:]]
    patches = git_patch("src/a.py", BASE, ours), git_patch("src/a.py", BASE, theirs)
    works = [read_agent_patch("agent1", patch) for patch in patches]
    assert overlap(*patches).files == {"src/a.py": 1}
    changes = [work.files[0].changes[0] for work in works]
    assert [(change.old_start, change.old_end) for change in changes] == [(4, 6), (5, 6)]
    lines = [
        patch.split(b"\n")[one.patch_line - 1] for patch, one in zip(patches, changes, strict=True)
    ]
    assert lines == [b"-line 4", b"-line 5"]


def test_shared_work_is_no_overlap_and_other_files_do_not_matter() -> None:
    same = git_patch("a.py", BASE, ["top\n", *BASE])
    found = overlap(
        same + git_patch("b.py", BASE, BASE[1:]), same + git_patch("c.py", BASE, BASE[1:])
    )
    assert found.files == {"a.py": 0}


def test_no_patch_and_no_diff_meet_nothing() -> None:
    found = overlap(None, b"this is no diff")
    assert (found.files, found.symbols) == ({}, ())


SOURCES = {
    "a.py": ("class Money:\n    def add(self, x):\n        a = 1\n        b = 2\n        return x\n\n    def sub(self, x):\n        return x\n", "b = 2", "Money.add"),
    "a.ts": ("export class Money {\n  private async add(x: number): Promise<void> {\n    a(1);\n    b(2);\n    return x;\n  }\n}\n", "b(2)", "Money.add"),
    "a.js": ("const add = async (x) => {\n  if (x) {\n    a(1);\n    b(2);\n  }\n}\n", "b(2)", "add"),
    "a.go": ("package a\n\nfunc (m *Money[T]) Add(x int) int {\n\ta(1)\n\tb(2)\n\treturn x\n}\n", "b(2)", "Money.Add"),
    "a.rs": ("impl<T> Add for crate::Money<T> {\n    pub(crate) fn add(x: u8) -> u8 {\n        a(1);\n        b(2);\n        x\n    }\n}\n", "b(2)", "Money.add"),
}  # fmt: skip


def test_symbols_are_found_in_what_git_shows(tmp_path: Path) -> None:
    real = RealRepo(tmp_path)
    base = real.commit({path: text(source) for path, (source, _, _) in SOURCES.items()})
    side = real.commit(
        {path: text(source.replace(old, "c(3)")) for path, (source, old, _) in SOURCES.items()},
        base,
    )
    work = read_agent_patch("agent1", real.diff(base, side))
    assert set(work.symbols) == {f"{path}: {name}" for path, (_, _, name) in SOURCES.items()}


def test_the_same_symbol_is_shared_only_in_the_same_file() -> None:
    base = [*"def a():\n    return 1\n\n\ndef b():\n    return 2\n".splitlines(keepends=True)]
    helper = ["def helper():\n", "    return 0\n", "\n", "\n"]
    ours = git_patch("m.py", base, [*base[:1], "    x = 0\n", *base[1:]]) + git_patch(
        "n.py", base, [*helper, *base]
    )
    theirs = git_patch("m.py", base, [*base[:1], "    return 3\n", *base[2:]]) + git_patch(
        "o.py", base, [*helper, *base]
    )
    assert overlap(ours, theirs).symbols == ("m.py: a",)
