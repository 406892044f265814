"""What of a patch reaches the tests: whole sections, byte for byte, or nothing of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.diff import PatchError, parse_diff
from cooperbench.eval.hygiene import CleanPatch, DroppedFile, clean_patch, is_test_config
from cooperbench.eval.testside import TestSide

HIDDEN = frozenset({"tests/test_x.py", "tests/data/new.json"})


def changed(path: str) -> bytes:
    name = path.encode()
    return b"diff --git a/%b b/%b\nindex 1..2 100644\n--- a/%b\n+++ b/%b\n@@ -1 +1 @@\n-a\n+b\n" % (
        (name,) * 4
    )


def cleaned(patch: bytes, before: bytes | None = None, after: bytes | None = None) -> CleanPatch:
    return clean_patch(patch, TestSide(HIDDEN), lambda path: before, lambda path: after)


WORK = changed("src/x.py")


def test_a_patch_without_such_files_is_left_alone() -> None:
    patch = b"Subject: x\n\n" + WORK + changed("docs/y.md") + b"-- \n2.39.5\n"
    assert cleaned(patch) == CleanPatch(patch, ())
    assert cleaned(b"") == CleanPatch(b"", ())


def test_exactly_the_hidden_files_are_dropped() -> None:
    result = cleaned(
        WORK + changed("tests/test_x.py") + changed("src/test_x.py.bak") + changed("src/tests_x.py")
    )
    assert result.patch == WORK + changed("src/test_x.py.bak") + changed("src/tests_x.py")
    assert result.dropped == (DroppedFile("tests/test_x.py", "hidden_test"),)


def test_a_patch_of_hidden_files_alone_becomes_empty() -> None:
    assert cleaned(b"Subject: x\n\n" + changed("tests/test_x.py") + b"-- \n2.39.5\n").patch == b""


@pytest.mark.parametrize("verb", [b"rename", b"copy"])
@pytest.mark.parametrize(("old", "new"), [("tests/test_x.py", "kept.py"), ("kept.py", "tests/test_x.py")])
def test_a_dropped_rename_keeps_neither_side(verb: bytes, old: str, new: str) -> None:
    names = (old.encode(), new.encode())
    moved = b"diff --git a/%b b/%b\nsimilarity index 100%%\n" % names
    moved += b"%b from %b\n%b to %b\n" % (verb, names[0], verb, names[1])
    result = cleaned(moved + WORK)
    assert result.patch == WORK
    assert result.dropped == (DroppedFile(old, "hidden_test"), DroppedFile(new, "hidden_test"))


def test_quoted_and_unprefixed_names_do_not_hide_a_file() -> None:
    quoted = b'--- "a/tests/t\\145st_x.py"\n+++ "b/tests/t\\145st_x.py"\n@@ -1 +1 @@\n-a\n+b\n'
    other_prefix = b"--- any/tests/test_x.py\n+++ any/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"
    unprefixed = b"--- tests/test_x.py\n+++ tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"
    remembered = b"diff --git a/tests/test_x.py b/tests/test_x.py\n"
    for section in (quoted, other_prefix, unprefixed, remembered):
        assert cleaned(section + WORK).patch == WORK


def test_a_file_in_the_place_of_a_hidden_folder_is_dropped() -> None:
    link = b"diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+/elsewhere\n"
    assert cleaned(link + WORK).dropped == (DroppedFile("tests", "hidden_test"),)


def test_text_between_the_files_stays_where_it_was() -> None:
    mail = b"-- \n2.39.5\n\nFrom 2 Mon Sep 17 00:00:00 2001\nSubject: second\n\n---\n"
    result = cleaned(b"Subject: first\n\n" + WORK + changed("conftest.py") + mail + changed("y"))
    assert result.patch == b"Subject: first\n\n" + WORK + mail + changed("y")


def test_text_after_a_dropped_file_cannot_become_the_header_of_the_one_before() -> None:
    mode = b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
    result = cleaned(mode + changed("conftest.py") + b"rename from x\nrename to tests/test_x.py\n" + WORK)
    assert result.patch == mode + WORK


@pytest.mark.parametrize("patch", [b"no diff", changed(".git/config"), changed("../x"), WORK[:-3]])
def test_what_cannot_be_cleaned_is_refused(patch: bytes) -> None:
    with pytest.raises(PatchError):
        cleaned(patch)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "conftest.py",
            "tests/unit/conftest.py",
            "pytest.ini",
            ".pytest.ini",
            "pytest.toml",
            ".pytest.toml",
        ),
        *("tox.ini", "sub/tox.ini", "sitecustomize.py", "src/usercustomize.py", "evil.pth"),
        *(
            "jest.config.js",
            "packages/a/jest.config.mjs",
            "vitest.config.ts",
            "vitest.workspace.json",
            "karma.conf.js",
        ),
        *(".mocharc", ".mocharc.yml", ".npmrc", ".yarnrc.yml", "node_modules/jest/index.js"),
        *(
            ".cargo/config",
            "sub/.cargo/config.toml",
            ".config/nextest.toml",
            "rust-toolchain.toml",
            "go.work",
        ),
        *("ava.config.js", "bunfig.toml", "e2e/playwright.config.ts", "packages/a/node_modules/b/index.js"),
        *("x.egg-info/entry_points.txt", "pytest.py", "src/_pytest/__init__.py", "unittest/__init__.py"),
    ],
)
def test_test_runner_configuration_is_dropped_by_name(path: str) -> None:
    assert is_test_config(path)
    assert cleaned(changed(path) + WORK) == CleanPatch(WORK, (DroppedFile(path, "test_config"),))


@pytest.mark.parametrize(
    "path",
    [
        *(
            "src/myconftest.py",
            "conftest.py.md",
            "docs/pytest.ini.md",
            "src/jest/config.js",
            "cargo/config.toml",
        ),
        *("lib/pytest.py", "entry_points.txt", "fixtures/modules/a.js"),
        *("babel.config.js", "tsconfig.json", ".coveragerc", "Makefile", "build.rs", ".node-version"),
    ],
)
def test_other_files_are_work(path: str) -> None:
    assert not is_test_config(path)
    assert cleaned(changed(path)).dropped == ()


@pytest.mark.parametrize(
    ("path", "before", "after", "is_dropped"),
    [
        ("pyproject.toml", b"[tool.pytest.x]\na=1", b"[project]\nname='x'\n[tool.pytest.x]\na=1", False),
        ("pyproject.toml", b"[tool.coverage.run]\na=1", b"[tool.coverage.run]\na=2", False),
        ("pyproject.toml", None, b"[project]\nname='x'", False),
        ("pyproject.toml", b"[project]\nname='x'", None, False),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na=1", b"[tool.pytest.ini_options]\na=2", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na=1", None, True),
        ("pyproject.toml", b"", b"[tool.pytest]\na=1", True),
        ("pyproject.toml", b"", b"[project.entry-points.pytest11]\na='b'", True),
        ("pyproject.toml", b"", b"[project.entry-points.other]\na='b'", False),
        ("pyproject.toml", b"", b"[tool.poetry.plugins.pytest11]\na='b'", True),
        ("pyproject.toml", b"", b"[tool.pytest", True),
        ("pyproject.toml", b"", b"\xff", True),
        ("pyproject.toml", b"[broken", b"[project]\nname='x'", False),
        ("pyproject.toml", b"[broken", b"[broken", False),
        ("sub/pyproject.toml", b"", b"[tool.pytest]\na=1", True),
        ("setup.cfg", b"[metadata]\nname=x", b"[metadata]\nname=y\n[tool:other]\na=1", False),
        ("setup.cfg", b"[tool:pytest]\naddopts=-q", b"[tool:pytest]\naddopts=-k nothing", True),
        ("setup.cfg", b"", b"[options.entry_points]\npytest11 =\n  a = b", True),
        ("setup.cfg", b"", b"[options.entry_points]\nconsole_scripts =\n  a = b", False),
        ("setup.cfg", b"", b"no section", True),
        ("setup.py", b"setup()", b"setup(name='x')", False),
        ("setup.py", b"setup()", b"setup(entry_points={'pytest11': ['a = b']})", True),
        ("package.json", b'{"scripts": {"test": "a"}}', b'{"name": "x", "scripts": {"test": "a", "b": "c"}}', False),
        ("package.json", b'{"scripts": {"test": "jest"}}', b'{"scripts": {"test": "true"}}', True),
        ("package.json", b"{}", b'{"scripts": {"pretest:unit": "x"}}', True),
        ("package.json", b"{}", b'{"jest": {"testMatch": []}}', True),
        ("package.json", b"{}", b"[]", True),
        ("package.json", b"{}", b"{" * 100_000, True),
        ("Cargo.toml", b"[package]\nname='x'", b"[package]\nname='x'\n[[bin]]\nname='y'\n[dependencies]\na='1'", False),
        ("Cargo.toml", b"[lib]\nname='x'", b"[lib]\nname='x'\ntest=false", True),
        ("Cargo.toml", b"[lib]\nname='x'", b"[lib]\nname='x'\nharness=false", True),
        ("Cargo.toml", b"", b"[[test]]\nname='t'\nharness=false", True),
        ("Cargo.toml", b"[package]\nname='x'", b"[package]\nname='x'\nautotests=false", True),
        ("Cargo.toml", b"[workspace]\nmembers=['a']", b"[workspace]\nmembers=['a','b']", False),
        ("Cargo.toml", b"[workspace]\nmembers=['a']", b"[workspace]\nmembers=['a']\ndefault-members=[]", True),
        ("vite.config.ts", b"export default {}", b"export default { plugins: [] }", False),
        ("vite.config.ts", b"export default {}", b"export default { test: { include: [] } }", True),
    ],
)  # fmt: skip
def test_mixed_files_go_only_if_their_test_runner_part_changes(
    path: str, before: bytes | None, after: bytes | None, is_dropped: bool
) -> None:
    patch = changed(path) + WORK
    expected = CleanPatch(WORK, (DroppedFile(path, "test_config"),)) if is_dropped else CleanPatch(patch, ())
    assert cleaned(patch, before, after) == expected


@given(
    st.lists(
        st.sampled_from(["a.py", "b/c.txt", "tests/test_x.py", "conftest.py", "tests/test_y.py", "c.py"]),
        max_size=8,
    ),
    st.binary(max_size=30),
)
def test_what_remains_is_what_was_there_less_the_dropped(paths: list[str], content: bytes) -> None:
    forbidden = {"tests/test_x.py", "conftest.py", "tests/test_y.py"}
    patch = b"".join(map(changed, paths))
    result = cleaned(patch, content, content)
    assert result.patch == b"".join(changed(path) for path in paths if path not in forbidden)
    assert {dropped.path for dropped in result.dropped} == forbidden & set(paths)
    assert cleaned(result.patch).dropped == ()


@given(
    st.binary(max_size=300), st.sampled_from(["pyproject.toml", "setup.cfg", "package.json", "Cargo.toml"])
)
def test_no_content_breaks_the_comparison(content: bytes, path: str) -> None:
    for before, after in ((content, b""), (None, content), (content, None)):
        assert parse_diff(cleaned(changed(path) + WORK, before, after).patch).files
