"""Merging trees gives what `git merge` gives in a clone."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.trees import TreeStore
from tests.support.eval.realgit import BaseFile, Files, RealRepo, file_in, merge_patches

FOLDERS = ("", "old/", "old/sub/", "new/", "new/sub/", "other/")
NAMES = ("one", "two", "three", 'ünï cödé\t"q"')
PATHS = tuple(f"{folder}{name}" for folder in FOLDERS for name in NAMES)
paths = st.sampled_from(PATHS)
lines = st.lists(st.sampled_from(("red\n", "green\n", "blue\r\n", "grey\n")), max_size=3).map(
    "".join
)


def body(path: str, tail: str = "") -> bytes:
    """Unlike every other file's, so that a rename is seen as one."""
    return "".join(f"{path} line {number}\n" for number in range(8)).encode() + tail.encode()


def put(files: Files, path: str, file: BaseFile) -> None:
    """A file, in place of whatever cannot exist beside it."""
    for other in list(files):
        if other.startswith(f"{path}/") or path.startswith(f"{other}/"):
            del files[other]
    files[path] = file


@st.composite
def base_trees(draw: st.DrawFn) -> Files:
    files: Files = {}
    for path in draw(st.lists(paths, min_size=1, max_size=9, unique=True)):
        mode = draw(st.sampled_from(("100644", "100644", "100644", "100755", "120000", "160000")))
        content = {"120000": b"one", "160000": b"ab" * 20}.get(mode, body(path))
        files[path] = BaseFile(mode, content)
    return files


@st.composite
def edited(draw: st.DrawFn, base: Files) -> Files:
    files = dict(base)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                (
                    "head",
                    "tail",
                    "delete",
                    "rename",
                    "rename",
                    "folder",
                    "folder",
                    "mode",
                    "add",
                    "add",
                    "link",
                    "binary",
                    "dirfile",
                )
            )
        )
        path = draw(st.sampled_from(sorted(files))) if files else draw(paths)
        file = files.get(path, BaseFile("100644", b""))
        if kind == "add":
            target = draw(paths)
            put(
                files,
                target,
                BaseFile("100644", body(draw(st.sampled_from(("x", target))), draw(lines))),
            )
        elif kind == "dirfile":
            put(
                files,
                draw(st.sampled_from(("old", "new", "one/below", "old/one/x"))),
                BaseFile("100644", body("d")),
            )
        elif kind == "folder":
            source, target = draw(st.sampled_from(FOLDERS[1:])), draw(st.sampled_from(FOLDERS))
            for name in [name for name in files if name.startswith(source)]:
                moved = files.pop(name)
                put(files, target + name.removeprefix(source), moved)
        elif path not in files:
            continue
        elif kind == "delete":
            del files[path]
        elif kind == "rename":
            del files[path]
            put(files, draw(paths), file)
        elif kind == "link":
            files[path] = BaseFile("120000", draw(st.sampled_from((b"two", b"three"))))
        elif file.mode in ("120000", "160000"):
            files[path] = BaseFile(file.mode, draw(st.sampled_from((b"cd" * 20, b"ef" * 20))))
        elif kind == "mode":
            files[path] = BaseFile("100755" if file.mode == "100644" else "100644", file.data)
        elif kind == "head":
            files[path] = BaseFile(file.mode, draw(lines).encode() + file.data)
        elif kind == "tail":
            files[path] = BaseFile(
                file.mode, file.data + draw(lines).encode() + draw(st.sampled_from((b"", b"end")))
            )
        elif kind == "binary":
            files[path] = BaseFile(file.mode, b"\0" + draw(st.binary(max_size=3)) + file.data)
    return files


@st.composite
def situations(draw: st.DrawFn) -> tuple[Files, Files, Files]:
    base = draw(base_trees())
    return base, draw(edited(base)), draw(edited(base))


@given(situation=situations(), with_renames=st.booleans())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_merges_are_those_of_a_full_clone(
    situation: tuple[Files, Files, Files], with_renames: bool
) -> None:
    base, ours, theirs = situation
    with TemporaryDirectory() as folder:
        real = RealRepo(Path(folder) / "clone")
        base_commit = real.commit(base)
        sides = [real.commit(side, base_commit) for side in (ours, theirs)]
        patches = [
            real.diff(base_commit, side, "-M" if with_renames else "--no-renames") for side in sides
        ]
        result = merge_patches(base_of_clone(real.path / ".git", base_commit), patches)
        if b"" in patches:
            assert result.status == "missing_input"
            assert real.tree_with(base_commit, result.patch) == real.tree(
                sides[0] if patches[0] else sides[1]
            )
            return
        if real.tree(sides[0]) == real.tree(sides[1]):
            assert (result.status, result.strategy) == ("identical", "plain")
            assert real.tree_with(base_commit, result.patch) == real.tree(sides[0])
            return
        expected = real.merge(*sides)
        assert result.status == ("clean" if expected.clean else "conflict")
        assert result.conflicting_files == expected.conflicting_files
        if expected.clean:
            assert real.tree_with(base_commit, result.patch) == expected.tree
        else:
            assert (result.strategy == "union") == bool(result.patch)


@given(situation=situations())
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_patches_round_trip_through_trees(situation: tuple[Files, Files, Files]) -> None:
    base, ours, _ = situation
    with TemporaryDirectory() as folder:
        real = RealRepo(Path(folder) / "clone")
        base_commit = real.commit(base)
        side = real.commit(ours, base_commit)
        patch = real.diff(base_commit, side, "-M", "--full-index")
        with TreeStore(base_of_clone(real.path / ".git", base_commit)) as repo:
            applied = repo.apply(patch)
            assert applied.tree
            normalised = repo.patch_of(applied.tree)
            for path in {*base, *ours}:
                assert file_in(repo, applied.tree, path) == (
                    ours[path].data if path in ours else None
                )
        assert real.tree_with(base_commit, normalised) == real.tree(side)
