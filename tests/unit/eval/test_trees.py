"""Applying and merging patches: every kind of change, every kind of conflict, and what must not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import UserError
from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.trees import (
    TreeStore,
)
from tests.support.eval.lab import LINES, Lab, creation
from tests.support.eval.realgit import (
    BaseFile,
    base_with,
    file_in,
    merge_patches,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path


def submodule(digit: str) -> BaseFile:
    return BaseFile("160000", digit.encode() * 40)


def test_separate_changes_merge_cleanly(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"a.txt": LINES, "untouched.txt": "same\n"})
    ours = lab.patch({"a.txt": LINES.replace("line 2\n", "ours\n")})
    theirs = lab.patch({"a.txt": LINES.replace("line 19\n", "theirs\n"), "new.txt": "new\n"})
    result = merge_patches(lab.tree, [ours, theirs])
    assert (result.status, result.strategy, result.conflicting_files, result.detail) == (
        "clean",
        "plain",
        (),
        "",
    )
    assert lab.files_after(result.patch) == {
        "a.txt": LINES.replace("line 2\n", "ours\n").replace("line 19\n", "theirs\n").encode(),
        "new.txt": b"new\n",
        "untouched.txt": b"same\n",
    }


def test_a_textual_conflict_is_told_and_both_sides_are_kept(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"b.txt": LINES, "a.txt": "one\n"})
    ours = lab.patch({"b.txt": LINES.replace("line 2\n", "ours\n"), "a.txt": "one\nours\n"})
    theirs = lab.patch({"b.txt": LINES.replace("line 2\n", "theirs\n"), "a.txt": "one\ntheirs\n"})
    result = merge_patches(lab.tree, [ours, theirs])
    assert (result.status, result.strategy) == ("conflict", "union")
    assert result.conflicting_files == ("a.txt", "b.txt")
    assert result.detail == "CONFLICT (content): Merge conflict in a.txt"
    after = lab.files_after(result.patch)
    assert after["a.txt"] == b"one\nours\ntheirs\n"
    assert b"line 1\nours\ntheirs\nline 3\n" in after["b.txt"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param({"a.txt": "ours\n" + LINES}, {"a.txt": None}, id="modify/delete"),
        pytest.param({"data.bin": b"\0ours"}, {"data.bin": b"\0theirs"}, id="binary"),
        pytest.param({"a.txt": None, "x.txt": LINES}, {"a.txt": None, "y.txt": LINES}, id="rename/rename"),
        pytest.param({"link": BaseFile("120000", b"x")}, {"link": BaseFile("120000", b"y")}, id="symlink"),
        pytest.param({"new": "a\n"}, {"new/below": "a\n"}, id="file/directory"),
        pytest.param({"new": text("a\n")}, {"new": text("a\n", "100755")}, id="mode"),
        pytest.param({"module": submodule("1")}, {"module": submodule("2")}, id="submodule"),
    ],
)  # fmt: skip
def test_conflicts_that_no_union_resolves_have_no_result(
    tmp_path: Path,
    ours: dict[str, BaseFile | str | bytes | None],
    theirs: dict[str, BaseFile | str | bytes | None],
) -> None:
    base: dict[str, BaseFile | str | bytes] = {"a.txt": LINES, "data.bin": b"\0base"}
    base |= {"link": BaseFile("120000", b"base"), "module": submodule("f")}
    lab = Lab(tmp_path, base)
    patches = [lab.patch(ours), lab.patch(theirs)]
    result = merge_patches(lab.tree, patches)
    assert (result.status, result.strategy, result.patch) == ("conflict", "none", b"")
    assert result.conflicting_files
    assert not any("~" in path for path in result.conflicting_files)
    assert result.detail.startswith(("CONFLICT", "warning", "Failed to merge submodule"))


def test_file_added_to_a_moved_directory(
    tmp_path: Path,
) -> None:
    def merged(base: dict[str, BaseFile | str | bytes], name: str) -> tuple[str, tuple[str, ...]]:
        lab = Lab(tmp_path / name, base)
        ours = lab.patch({"old/a": None, "new/a": LINES, "old/b": None, "new/b": LINES * 2})
        theirs = lab.patch({"old/added": "added\n"})
        result = merge_patches(lab.tree, [ours, theirs])
        return result.status, result.conflicting_files

    everything: dict[str, BaseFile | str | bytes] = {
        "old/a": LINES,
        "old/b": LINES * 2,
        "untouched": "x\n",
    }
    assert merged(everything, "moved") == ("conflict", ("new/added",))
    assert merged(everything | {"old/deep/stays": "stays\n"}, "stays") == ("clean", ())
    assert merged(everything | {"new/added": "in the way\n"}, "in the way") == ("conflict", ())


@pytest.mark.parametrize(
    "rule",
    ["* merge=union", "* merge=ours", "* -merge", "* binary", "* merge=evil", "* text eol=crlf"],
)
def test_attributes_of_the_agents_do_not_count(tmp_path: Path, rule: str) -> None:
    macro = f"[attr]sly merge=union text\n* sly\n{rule}\n"
    for place, base in (("in the base", {".gitattributes": macro}), ("added", {})):
        lab = Lab(tmp_path / place, {"a.txt": "one\ntwo\n", "b.txt": LINES, **base})
        added = {".gitattributes": macro} if not base else {}
        ours = lab.patch({"a.txt": "one\nours\n", "b.txt": "first\n" + LINES, **added}, "--text")
        theirs = lab.patch({"a.txt": "one\ntheirs\n", "b.txt": LINES + "last\n", **added}, "--text")
        result = merge_patches(lab.tree, [ours, theirs])
        assert (result.status, result.strategy, result.conflicting_files) == (
            "conflict",
            "union",
            ("a.txt",),
        )
        assert b"\r" not in result.patch
        assert lab.files_after(result.patch)["a.txt"] == b"one\nours\ntheirs\n"


def test_identical_patches(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"a.txt": LINES})
    patch = lab.patch({"a.txt": "changed\n"})
    for number in (2, 3):
        result = merge_patches(lab.tree, [patch] * number)
        assert (result.status, result.strategy) == ("identical", "plain")
        assert lab.files_after(result.patch) == {"a.txt": b"changed\n"}


def test_missing_inputs_are_named_and_the_rest_is_merged(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"a.txt": LINES})
    good = lab.patch({"a.txt": "changed\n"})
    stale = good.replace(b"-line 3\n", b"-another line\n")
    for bad, reason in (
        (None, "no patch"),
        (b" \n", "the patch changes nothing"),
        (stale, "the patch does not apply: patch failed: a.txt:1; a.txt: patch does not apply"),
        (b"junk\n", "the patch does not apply: "),
    ):
        result = merge_patches(lab.tree, [good, bad])
        assert (result.status, result.strategy) == ("missing_input", "plain")
        assert result.detail.startswith(f"agent 2: {reason}")
        assert "\n" not in result.detail
        assert lab.files_after(result.patch) == {"a.txt": b"changed\n"}
    nothing = merge_patches(lab.tree, [None, b""])
    assert (nothing.status, nothing.strategy, nothing.patch) == ("missing_input", "none", b"")
    assert nothing.detail == "agent 1: no patch; agent 2: the patch changes nothing"


def test_more_than_two_are_merged_from_the_left(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"a.txt": LINES, "b.txt": "one\n", "c.bin": b"\0"})
    first = lab.patch({"a.txt": "first\n" + LINES, "b.txt": "one\nfirst\n"})
    second = lab.patch({"a.txt": LINES + "second\n"})
    third = lab.patch(
        {"a.txt": LINES.replace("line 10\n", "third\n"), "b.txt": "one\nthird\n", "c.bin": b"\0x"}
    )
    fourth = lab.patch({"c.bin": b"\0y"})
    assert merge_patches(lab.tree, [first, second]).status == "clean"
    three = merge_patches(lab.tree, [first, second, third])
    assert (three.status, three.strategy, three.conflicting_files) == (
        "conflict",
        "union",
        ("b.txt",),
    )
    after = lab.files_after(three.patch)
    assert after["b.txt"] == b"one\nfirst\nthird\n"
    assert (
        after["a.txt"] == b"first\n" + LINES.replace("line 10\n", "third\n").encode() + b"second\n"
    )
    four = merge_patches(lab.tree, [first, second, third, fourth])
    assert (four.status, four.strategy, four.conflicting_files) == (
        "conflict",
        "none",
        ("b.txt", "c.bin"),
    )
    rest = merge_patches(lab.tree, [first, third, None])
    assert (rest.status, rest.strategy) == ("missing_input", "union")
    assert rest.detail == "agent 3: no patch; CONFLICT (content): Merge conflict in b.txt"


def test_many_pairs_go_through_one_process(tmp_path: Path) -> None:
    """Submodule conflicts too, after which git's answer has something to say that is not framed."""
    lab = Lab(tmp_path, {"a.txt": LINES, "module": submodule("f")})
    sides: list[dict[str, BaseFile | str | bytes | None]] = [
        {"module": submodule("1")},
        {"module": submodule("2")},
        {"a.txt": "ours\n" + LINES},
        {"a.txt": "theirs\n" + LINES},
    ]
    patches = [lab.patch(side) for side in sides]
    with TreeStore(lab.tree) as repo:
        trees = [repo.apply(patch).tree for patch in patches]
        pairs = [(ours, theirs) for ours in trees for theirs in trees]
        files = [merge.files for merge in repo.merge_pairs(pairs)]
        clean = [bool(merge.tree) for merge in repo.merge_pairs(pairs, union=True)]
        assert repo.merge_pairs([]) == []
    none, module, both = (), ("module",), ("a.txt",)
    assert files == [none, module, none, none, module, *[none] * 6, both, none, none, both, none]
    assert clean == [conflict != module for conflict in files]


HARD_BASE: dict[str, BaseFile | str | bytes] = {
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "no newline": b"one\ntwo",
    "bin": bytes(range(256)),
    "tool": "#!/bin/sh\n",
    "src/moved.py": LINES,
    "dönut\t\"q\".txt": "x\n",
    "caf\udce9": "latin\n",
    "empty": "",
    "link": BaseFile("120000", b"crlf.txt"),
    "keep/untouched": "untouched\n",
}  # fmt: skip
HARD_CHANGES: dict[str, BaseFile | str | bytes | None] = {
    "crlf.txt": b"one\r\nTWO\nthree\r\n",
    "no newline": b"one\ntwo\nthree",
    "bin": bytes(reversed(range(256))),
    "tool": text("#!/bin/sh\n", "100755"),
    "src/moved.py": None,
    "lib/moved to.py": LINES + "more\n",
    "dönut\t\"q\".txt": "y \t\n",
    "caf\udce9": "latin 2\n",
    "empty": None,
    "new empty": "",
    "link": text("a file now\n"),
}  # fmt: skip


@pytest.mark.parametrize(
    "options", [("--no-renames",), ("-M",), ("-M", "--full-index", "-U1"), ("-M20%", "-C")]
)
def test_every_kind_of_change_survives_byte_for_byte(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    lab = Lab(tmp_path, HARD_BASE)
    patch = lab.patch(HARD_CHANGES, *options)
    expected = lab.side(HARD_CHANGES)
    with TreeStore(lab.tree) as repo:
        applied = repo.apply(patch)
        assert (applied.status, applied.error) == ("applied", "")
        assert applied.tree
        for path in {*HARD_BASE, *expected}:
            wanted = expected[path].data if path in expected else None
            assert file_in(repo, applied.tree, path) == wanted, path
        assert file_in(repo, applied.tree, "src") is None
        again = repo.patch_of(applied.tree)
        assert b"rename from" not in again
        with TreeStore(lab.tree) as second:
            assert second.apply(again).tree == applied.tree


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param("--- a/src/x.py\n+++ b/src/x.py\n", id="prefixes"),
        pytest.param(
            "--- a/src/x.py\t2024-01-01 00:00:00\n+++ b/src/x.py\t2024-01-02 00:00:00\n", id="times"
        ),
        pytest.param("--- src/x.py\n+++ src/x.py\n", id="no prefixes"),
        pytest.param(
            "diff --git src/x.py src/x.py\n--- src/x.py\n+++ src/x.py\n", id="git without prefixes"
        ),
        pytest.param(
            "From 1 Mon Sep 17 00:00:00 2001\nSubject: x\n\n---\n--- a/src/x.py\n+++ b/src/x.py\n",
            id="mail",
        ),
    ],
)
def test_patches_without_gits_header_apply(tmp_path: Path, headers: str) -> None:
    base = base_with(tmp_path, {"src/x.py": text("one\n"), "x.py": text("one\n")})
    patch = f"{headers}@@ -1 +1 @@\n-one\n+two\n".encode()
    with TreeStore(base) as repo:
        applied = repo.apply(patch)
        assert (applied.status, applied.error) == ("applied", "")
        assert applied.tree
        assert file_in(repo, applied.tree, "src/x.py") == b"two\n"
        assert file_in(repo, applied.tree, "x.py") == b"one\n"


@pytest.mark.parametrize(
    "path", [".git/config", "../x", "folder", "link/x", "file/x", "file", "sub/.GIT/hooks/x"]
)
def test_patches_that_reach_where_they_must_not_are_refused(tmp_path: Path, path: str) -> None:
    files = {"folder/x": text("x\n"), "link": BaseFile("120000", b"folder"), "file": text("x\n")}
    good = creation("good.txt")
    with TreeStore(base_with(tmp_path, files)) as repo:
        bad = repo.apply(creation(path))
        assert (bad.status, bad.tree) == ("failed", "")
        assert bad.error
        assert not repo.apply(good + creation(path)).tree
        assert repo.apply(good).status == "applied"


def test_a_store_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_with(tmp_path, {"a.txt": text("one\n")})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    with TreeStore(base) as store:
        assert list(scratch.iterdir())
        tree = store.apply(creation("b")).tree
        assert tree
        assert store.merge_groups([[tree, base.tree]])[0].status == "clean"
    assert not list(scratch.iterdir())


class TestBaseOfClone:
    def test_reads_a_commit(self, tmp_path: Path) -> None:
        lab = Lab(tmp_path, {**HARD_BASE, "module": submodule("f")})
        base = base_of_clone(lab.real.path / ".git", lab.commit[:12])
        assert base.paths == lab.base.keys()

    def test_says_what_is_missing(self, tmp_path: Path) -> None:
        lab = Lab(tmp_path, {"a": "one\n"})
        with pytest.raises(UserError, match=r"commit 1234567 is not in .*Fetch it"):
            base_of_clone(lab.real.path / ".git", "1234567")
        with pytest.raises(UserError, match="commit --all is not in"):
            base_of_clone(lab.real.path / ".git", "--all")


def test_lines_with_names_of_all_kinds(tmp_path: Path) -> None:
    lines = [
        "a.b",
        "axb",
        "ab",
        "(x)",
        "y[0]",
        "\\d",
        "d",
        "x^y",
        "xx",
        "x*",
        "a|c",
        "bé",
        "é",
        "data/x.txt",
    ]
    base = base_with(tmp_path, {"m.py": text("".join(f"{line}\n" for line in lines))})
    with TreeStore(base) as store:

        def found(*names: str) -> list[str]:
            return [line for _, line in store.lines_with(names, base.tree)]

        assert found("a.b") == ["a.b"]
        assert found("a") == ["a.b", "a|c"]
        assert found("a|b") == []
        assert found("(x)", "x*", "\\d") == ["(x)", "\\d", "x*"]
        assert found("^") == []
        assert found("é") == ["é"]
        assert found("[0]") == []
        assert found("data/x.txt", "ab") == ["ab", "data/x.txt"]
        assert found("") == found("new\nline") == found() == []
