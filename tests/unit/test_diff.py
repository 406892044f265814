"""Diffs as git writes them."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cooperbench.diff import parse_diff

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.diff import ChangedFile

MODIFIED = b"""\
diff --git a/src/x.py b/src/x.py
index 1111111..2222222 100644
--- a/src/x.py
+++ b/src/x.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+TWO
 three
"""


def git(cwd: Path, *arguments: str) -> bytes:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    }
    identity = (
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "-c",
        "init.defaultBranch=main",
    )
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True).stdout


def only(data: bytes) -> ChangedFile:
    (patch,) = parse_diff(data)
    return patch


def hunk_lines(data: bytes) -> list[bytes]:
    return [
        line.encode("utf-8", "surrogateescape")
        for patch in parse_diff(data)
        for hunk in patch.hunks
        for line in hunk.lines
    ]


def test_a_modified_file() -> None:
    patch = only(MODIFIED)
    assert (patch.old_path, patch.new_path, patch.patch_line) == ("src/x.py", "src/x.py", 1)
    assert (patch.paths, patch.path) == (("src/x.py",), "src/x.py")
    (hunk,) = patch.hunks
    assert (hunk.heading, hunk.old_start, hunk.patch_line) == ("def f():", 1, 6)
    assert hunk.lines == (" one", "-two", "+TWO", " three")
    (change,) = hunk.changes
    assert (change.old_start, change.old_end, change.lines, change.patch_line) == (
        2,
        3,
        ("-two", "+TWO"),
        7,
    )


@pytest.mark.parametrize(
    ("data", "old", "new"),
    [
        (b"diff --git a/x b/x\nnew file mode 100644\nindex 0000000..e69de29\n", None, "x"),
        (b"diff --git a/x b/x\ndeleted file mode 100644\nindex e69de29..0000000\n", "x", None),
        (b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "x", "x"),
        (b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "x", "y"),
        (b"diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "x", "y"),
        (b"diff --git a/d b/x b/d b/x\nold mode 100644\nnew mode 100755\n", "d b/x", "d b/x"),
        (b"diff --git a/a b.txt b/a b.txt\nindex 1..2 100644\n--- a/a b.txt\t\n+++ b/a b.txt\t\n@@ -1 +1 @@\n-a\n+b\n",
         "a b.txt", "a b.txt"),
        (b'diff --git "a/t\\303\\244b\\t\\"\\\\.txt" "b/t\\303\\244b\\t\\"\\\\.txt"\nnew file mode 100644\n', None,
         'täb\t"\\.txt'),
        (b'diff --git a/plain "b/\\303\\244"\nsimilarity index 100%\nrename from plain\nrename to "\\303\\244"\n',
         "plain", "ä"),
        (b'diff --git "a/\\377" "b/\\377"\nnew file mode 100644\n', None, "\udcff"),
        (b"diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "x", "y"),
        (b"diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "x", "x"),
    ],
)  # fmt: skip
def test_headers(data: bytes, old: str | None, new: str | None) -> None:
    patch = only(data)
    assert (patch.old_path, patch.new_path) == (old, new)


def test_lines_in_hunks_are_never_headers() -> None:
    data = (
        b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,5 @@\n--- a/foo\n+++ b/foo\n+@@ -1 +1 @@\n+diff --git a/y b/y\n"
        b"+new file mode 100644\n-x\n context\n\\ No newline at end of file\n"
    )
    assert hunk_lines(data) == data.splitlines()[4:]


def test_text_between_files_belongs_to_none_of_them() -> None:
    signature = b"-- \n2.39.5\n\n"
    mail = b"From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\n---\n x | 1 +\n 1 file changed\n\n"
    files = parse_diff(mail + MODIFIED + signature + mail + MODIFIED + signature)
    assert [len(patch.hunks[0].lines) for patch in files] == [4, 4]
    assert [patch.patch_line for patch in files] == [8, 27]


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n"])
def test_blank_input_has_no_files(data: bytes) -> None:
    assert parse_diff(data) == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"I could not do it.\n", "no file header"),
        (b"diff --git a/x b/x\n", "no file header"),
        (MODIFIED[: MODIFIED.index(b" three")], "the hunk does not have the lines"),
        (MODIFIED + MODIFIED[: MODIFIED.index(b"@@")], "ends before the hunks"),
        (MODIFIED.replace(b"-two", b"two"), "the hunk does not have the lines"),
        (MODIFIED.replace(b"+TWO", b"-TWO"), "the hunk does not have the lines"),
        (MODIFIED.replace(b"@@ -1,3", b"@@ -x,3"), "ends before the hunks"),
        (b'diff --git a/x b/x\n--- "a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n', "closing quote"),
        (b"diff --git a/x b/x\n--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "/dev/null"),
    ],
)
def test_what_is_no_whole_diff_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_diff(data)


def test_a_renamed_file_has_two_paths() -> None:
    renamed = b"diff --git a/b b/c\nsimilarity index 100%\nrename from b\nrename to c\n"
    assert [patch.paths for patch in parse_diff(MODIFIED + renamed)] == [("src/x.py",), ("c", "b")]


# Against git itself

_NAMES = st.sampled_from(
    [
        *("plain.txt", "with space.txt", 'täb\tquote".txt', "d b/d", "d/new\nline"),
        *("-dash", "--- a", "back\\slash", "ünï", "z/y/x"),
    ]
)
_LINES = st.sampled_from([b"one\n", b"two\n", b"-- x\n", b"diff --git a/q b/q\n", b"\n"])
_CONTENTS = st.one_of(
    st.sampled_from(
        [b"", b"x", b"x\n", b"a\r\nb\r\n", b"\0\1\2" * 50, b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n"]
    ),
    st.binary(max_size=80),
    st.lists(_LINES, max_size=12).map(b"".join),
)
_TREES = st.dictionaries(_NAMES, st.tuples(_CONTENTS, st.booleans()), max_size=4)


def write_tree(repository: Path, tree: dict[str, tuple[bytes, bool]]) -> None:
    git(repository, "rm", "-rfq", "--ignore-unmatch", ".")
    for name, (content, executable) in tree.items():
        file = repository / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755 if executable else 0o644)
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "--allow-empty", "-m", "x")


@given(
    before=_TREES,
    after=_TREES,
    flags=st.sampled_from([["--binary"], ["--binary", "-M", "-C"], [], ["-U0"]]),
)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_git_diffs_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, tuple[bytes, bool]],
    after: dict[str, tuple[bytes, bool]],
    flags: list[str],
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    git(repository, "init", "-q")
    write_tree(repository, before)
    write_tree(repository, after)
    for data in (
        git(repository, "diff", *flags, "HEAD~1", "HEAD"),
        git(repository, "format-patch", "--stdout", *flags, "HEAD~1..HEAD"),
    ):
        if not data.strip():
            continue
        files = parse_diff(data)
        stat = git(repository, "diff", "--numstat", *flags, "HEAD~1", "HEAD")
        counts = re.findall(rb"^(\d+)\t(\d+)\t", stat, re.MULTILINE)
        starts = [line[:1] for line in hunk_lines(data)]
        assert (starts.count(b"+"), starts.count(b"-")) == tuple(
            sum(int(count[column]) for count in counts) for column in (0, 1)
        )
        status = git(
            repository, "diff", "--name-status", "-z", "--no-renames", "HEAD~1", "HEAD"
        ).split(b"\0")
        changed = {name.decode("utf-8", "surrogateescape") for name in status[1::2]}
        touched = {path for patch in files for path in patch.paths}
        assert changed == touched if not {"-M", "-C"} & set(flags) else changed <= touched
        binary = re.findall(rb"^GIT binary patch$|^Binary files .* differ$", data, re.MULTILINE)
        assert sum(patch.is_binary for patch in files) == len(binary)


_PIECES = st.sampled_from(
    [
        *(
            MODIFIED,
            b"diff --git a/x b/x\n",
            b"--- a/x\n",
            b"+++ b/x\n",
            b"@@ -1 +1 @@\n",
            b"@@ -1,2 +0,0 @@\n",
        ),
        *(
            b"-a\n",
            b"+b\n",
            b" c\n",
            b"\\ No newline at end of file\n",
            b"rename from x\n",
            b"rename to y\n",
        ),
        *(
            b"new file mode 100644\n",
            b"index 1..2\n",
            b"GIT binary patch\n",
            b"literal 5\n",
            b"McmZQz\n",
            b"\n",
        ),
        *(b'"', b"diff --git ", b"a/ b/", b"/dev/null", b"\r\n", b"\xff", b"-- \n2.39\n"),
    ]
)


@given(st.one_of(st.binary(max_size=200), st.lists(_PIECES, max_size=25).map(b"".join)))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        files = parse_diff(data)
    except ValueError:
        return
    assert all(patch.paths for patch in files)
    lines = data.split(b"\n")
    for hunk in (hunk for patch in files for hunk in patch.hunks):
        assert lines[hunk.patch_line - 2].startswith(b"@@ -")
        assert len(hunk.lines) <= len(lines) - hunk.patch_line + 1
