"""What of a patch is judged: its tree without the test side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.protected_files import drop_protected_files, feature_paths
from cooperbench.eval.protected_paths import ProtectedFiles
from cooperbench.eval.trees import DroppedFile, TreeStore
from cooperbench.models import Task
from tests.support.eval.realgit import BaseFile, Files, RealRepo, base_with, text

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.eval.protected_paths import Reason

BASE = (
    "pkg/__init__.py",
    "pkg/core.py",
    "src/lib/__init__.py",
    "setup.py",
    "tools/build.py",
    "json.py",
)
SIDE = ProtectedFiles(
    frozenset({"tests/test_x.py"}), frozenset({"tests/golden_helper.py"}), BASE, frozenset({"attr"})
)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests/helper.py", "test_file"),
        ("tests/__init__.py", "test_file"),
        ("pkg/tests/data.json", "test_file"),
        ("pkg/test_more.py", "test_file"),
        ("pkg/more_test.py", "test_file"),
        ("src/__mocks__/fs.js", "test_file"),
        ("src/a.test.tsx", "test_file"),
        ("src/a.spec.mjs", "test_file"),
        ("src/__snapshots__/a.snap", "test_file"),
        ("x/init_test.go", "test_file"),
        ("x/testdata/golden.txt", "test_file"),
        ("Tests/helper.py", "test_file"),
        ("tests/api.rs", "test_file"),
        ("tests/src/run.rs", "test_file"),
        ("pkg/__pycache__/core.cpython-311.pyc", "compiled_file"),
        ("pkg/_speed.so", "compiled_file"),
        ("build/addon.node", "compiled_file"),
        ("attr/__init__.py", "shadows_module"),
        ("attr/_make.py", "shadows_module"),
        ("src/attr.py", "shadows_module"),
        ("decimal.py", "shadows_module"),
        ("tools/decimal.py", "shadows_module"),
        ("decimal.pyi", "shadows_module"),
        ("tests/test_x.py", "hidden_test"),
        ("tests", "hidden_test"),
        ("tests/test_x.py/below", "hidden_test"),
        ("conftest.py", "test_config"),
    ],
)
def test_it_does_not_come_from_an_agent(path: str, reason: str) -> None:
    assert SIDE.reason_to_drop(path) == reason


@pytest.mark.parametrize(
    "path",
    [
        "pkg/core.py",
        "pkg/decimal.py",
        "pkg/testing.py",
        "pkg/contest.py",
        "src/lib/attr.py",
        "src/newlib/__init__.py",
        "src/newlib/types.py",
        "newtool.py",
        "json.py",
        "attr.js",
        "docs/tests.md",
        "src/latest/a.go",
        "src/parser/tests.rs",
        "src/parser/tests/mod.rs",
        "tests/golden_helper.py",
    ],
)
def test_it_is_an_agents_work(path: str) -> None:
    assert SIDE.reason_to_drop(path) is None


def test_vendored_packages_of_go_come_from_the_dataset() -> None:
    assert (
        ProtectedFiles(frozenset(), base=("go.mod",)).reason_to_drop("vendor/x/assert.go")
        == "installed_package"
    )
    assert ProtectedFiles(frozenset()).reason_to_drop("vendor/x/assert.go") is None


HIDDEN = ProtectedFiles(frozenset({"tests/test_x.py", "tests/data/new.json"}))
REPO: Files = {
    "src/x.py": text("one\n"),
    "tests/test_x.py": text("hidden\n"),
    "pyproject.toml": text("[project]\nname = 'x'\n"),
}


class Judged:
    """A change of `REPO` as a patch, judged."""

    def __init__(
        self, folder: Path, after: Files, *options: str, patch: bytes | None = None
    ) -> None:
        self.base = base_with(folder, REPO)
        self.real = RealRepo(self.base.objects.parent.parent)
        if patch is None:
            patch = self.real.diff(
                self.base.commit, self.real.commit(after, self.base.commit), *options
            )
        with TreeStore(self.base) as store:
            self.work = drop_protected_files(patch, HIDDEN, store)

    def files(self) -> dict[str, bytes]:
        tree = self.real.tree_with(self.base.commit, self.work.patch)
        names = self.real.git("ls-tree", "-r", "--name-only", tree).decode().split()
        return {name: self.real.git("cat-file", "blob", f"{tree}:{name}") for name in names}


def test_work_is_kept_and_the_test_side_restored(tmp_path: Path) -> None:
    after = REPO | {
        "src/x.py": text("two\n"),
        "tests/test_x.py": text("mine\n"),
        "conftest.py": text("x\n"),
        "pyproject.toml": text("[tool.pytest.ini_options]\naddopts = '-k nothing'\n"),
    }
    judged = Judged(tmp_path, after)
    assert judged.work.status == "applied"
    assert set(judged.work.dropped) == {
        DroppedFile("conftest.py", "test_config"),
        DroppedFile("pyproject.toml", "test_config"),
        DroppedFile("tests/test_x.py", "hidden_test"),
    }
    assert judged.files() == {path: file.data for path, file in REPO.items()} | {
        "src/x.py": b"two\n"
    }


def test_a_patch_of_the_test_side_alone_becomes_empty(tmp_path: Path) -> None:
    work = Judged(tmp_path, REPO | {"tests/test_x.py": text("mine\n")}).work
    assert (work.status, work.patch) == ("empty", b"")
    assert work.error == "nothing is left of the patch without test files"


@pytest.mark.parametrize("options", [("-M",), ("-C", "--find-copies-harder"), ("--no-renames",)])
def test_a_hidden_test_that_was_moved_is_back(tmp_path: Path, options: tuple[str, ...]) -> None:
    moved = {path: file for path, file in REPO.items() if path != "tests/test_x.py"}
    judged = Judged(tmp_path, moved | {"src/kept.py": text("hidden\n")}, *options)
    assert judged.files()["tests/test_x.py"] == b"hidden\n"
    assert judged.files()["src/kept.py"] == b"hidden\n"


@pytest.mark.parametrize("thing", [BaseFile("120000", b"src"), text("a file\n")])
def test_nothing_stands_where_hidden_tests_need_a_folder(tmp_path: Path, thing: BaseFile) -> None:
    after = {"src/x.py": text("two\n"), "pyproject.toml": REPO["pyproject.toml"], "tests": thing}
    judged = Judged(tmp_path, after)
    assert judged.files()["tests/test_x.py"] == b"hidden\n"
    assert "tests" not in judged.files()


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("unittest", "test_config"),
        ("difflib", "shadows_module"),
        ("node_modules", "test_config"),
        ("__tests__", "test_file"),
    ],
)
def test_a_link_counts_as_the_folder_that_it_may_stand_for(
    tmp_path: Path, link: str, reason: Reason
) -> None:
    judged = Judged(
        tmp_path, REPO | {"src/fake/__init__.py": text(""), link: BaseFile("120000", b"src/fake")}
    )
    assert judged.work.dropped == (DroppedFile(link, reason),)
    assert link not in judged.files()


def test_other_links_are_kept(tmp_path: Path) -> None:
    judged = Judged(
        tmp_path, REPO | {"docs": BaseFile("120000", b"src"), "latest": BaseFile("120000", b"src")}
    )
    assert not judged.work.dropped


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        (None, "missing"),
        (b"", "empty"),
        (b"no diff\n", "failed"),
        (b"--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-three\n+four\n", "failed"),
        (b"--- a/src/x.py\n+++ b/src/x.py\n@@ -1 +1 @@\n-one\n", "failed"),
        (b"--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "failed"),
    ],
)
def test_what_is_no_patch_is_said(tmp_path: Path, patch: bytes | None, status: str) -> None:
    with TreeStore(base_with(tmp_path, REPO)) as store:
        work = drop_protected_files(patch, HIDDEN, store)
    assert (work.status, work.patch) == (status, b"")
    assert work.error
    assert "\n" not in work.error


def test_names_that_git_reads_differently_hide_nothing(tmp_path: Path) -> None:
    quoted = (
        b'--- "a/tests/t\\145st_x.py"\n+++ "b/tests/t\\145st_x.py"\n@@ -1 +1 @@\n-hidden\n+mine\n'
    )
    unprefixed = b"--- tests/test_x.py\n+++ tests/test_x.py\n@@ -1 +1 @@\n-hidden\n+mine\n"
    for patch in (quoted, unprefixed):
        assert Judged(tmp_path, {}, patch=patch).work.status == "empty"


LIBRARY: Files = {
    "pkg/__init__.py": text(""),
    "pkg/core.py": text("from pkg.test_utils import a\nfrom . import (test, best)\n"),
    "pkg/test_utils.py": text("a = 1\n"),
    "pkg/test_lonely.py": text("a = 1\n"),
    "pkg/test/__init__.py": text(""),
    "pkg/test/client.py": text("a = 1\n"),
    "pkg/tests/helper.py": text("a = 1\n"),
    "pkg/tests/test_a.py": text("from pkg.tests import helper\n"),
    "bench/x.py": text("import pkg.tests.helper\nimport tests.helper\n"),
    "tests/helper.py": text("a = 1\n"),
    "cmd/main.go": text('import (\n\t"example.invalid/m/internal/test"\n)\n'),
    "internal/test/server.go": text("package test\n"),
    "web/src/index.ts": text("import { x } from './test/fake';\n"),
    "web/src/test/fake.ts": text("export const x = 1;\n"),
    "web/test/fake.ts": text("export const x = 1;\n"),
}


def kept_of(folder: Path, after: Files, golden: frozenset[str] = frozenset()) -> set[str]:
    """Which changes of `LIBRARY` are judged."""
    base = base_with(folder, LIBRARY)
    real = RealRepo(base.objects.parent.parent)
    patch = real.diff(base.commit, real.commit(LIBRARY | after, base.commit))
    with TreeStore(base) as store:
        side = ProtectedFiles(frozenset({"pkg/tests/test_new.py"}), golden, tuple(LIBRARY))
        work = drop_protected_files(patch, side, store)
        return set(store.changes(work.tree))


def test_what_the_library_imports_is_no_test_whatever_its_name(tmp_path: Path) -> None:
    used = (
        "pkg/test_utils.py",
        "pkg/test/client.py",
        "internal/test/server.go",
        "web/src/test/fake.ts",
    )
    unused = ("pkg/test_lonely.py", "pkg/tests/helper.py", "tests/helper.py", "web/test/fake.ts")
    assert kept_of(tmp_path, {path: text("a = 2\n") for path in (*used, *unused)}) == set(used)


def test_a_new_module_that_the_agents_own_code_imports_is_kept(tmp_path: Path) -> None:
    new = {
        "pkg/core.py": text(
            "from pkg.test_runner import run\nfrom pkg import test_lonely\nfrom . import (\n    test_list,\n)\n"
        ),
        "pkg/test_runner.py": text("from .test_steps import step\n"),
        "pkg/test_steps.py": text("def step(): ...\n"),
        "pkg/test_list.py": text("def run(): ...\n"),
        "pkg/test_runner_itself.py": text("def test_run(): ...\n"),
        "pkg/test_lonely.py": text("changed\n"),
    }
    names = ("core", "test_runner", "test_steps", "test_list")
    assert kept_of(tmp_path, new) == {f"pkg/{name}.py" for name in names}


def test_a_folder_that_a_golden_patch_works_in_is_the_features(tmp_path: Path) -> None:
    changes = {path: text("b\n") for path in ("web/test/other.ts", "pkg/tests/other.py")}
    golden = frozenset({"web/test/fake.ts", "pkg/tests/helper.py"})
    assert kept_of(tmp_path, changes, golden) == {"web/test/other.ts"}


CRATE: Files = {
    "src/lib.rs": text("pub mod parser;\n"),
    "src/parser.rs": text("#[cfg(test)]\nmod tests;\n"),
    "src/snapshots/old.snap": text("old\n"),
    "pkg/core.py": text("x = 1\n"),
    "tests/api.rs": text('#[test]\nfn api() { load("optional.json") }\n'),
    "tests/fixtures/old.txt": text("old\n"),
    "tests/src/run.rs": text('const REF: &str = "tests/ref";\n'),
    "tests/ref/old.png": text("old\n"),
    "pkg/__snapshots__/a.test.js.snap": text("old\n"),
}
DATA = {
    "that a crate includes": (
        "src/lib.rs",
        'include_str!("../tests/fixtures/a.txt")',
        "tests/fixtures/a.txt",
    ),
    "of a folder that a crate has": (
        "build.rs",
        'dir("tests/fixtures")',
        "tests/fixtures/deep.bin",
    ),
    "of another language that unit tests read": (
        "src/parser/tests.rs",
        '#[test_case(Path::new("F1.py"))]',
        "tests/fixtures/F1.py",
    ),
    "snapshots of unit tests": (
        "src/parser/tests.rs",
        "assert_snapshot!(x);",
        "src/parser/tests/snapshots/c__x.snap",
    ),
    "snapshots beside the code": (
        "src/parser.rs",
        "assert_snapshot!(x);",
        "src/snapshots/c__x.snap",
    ),
    "snapshots elsewhere": (
        "src/parser.rs",
        'path("../tests/snapshots")',
        "tests/snapshots/c__x.snap",
    ),
    "in a new folder": ("pkg/core.py", 'files("pkg.testdata")', "pkg/testdata/defaults.json"),
    "of a kind that is told at run time": (
        "pkg/core.py",
        'f"{kind}/page.html"',
        "pkg/templates/test/page.html",
    ),
    "that Go embeds": ("cmd/main.go", "//go:embed testdata/*.tmpl", "cmd/testdata/x.tmpl"),
    "that a script reads": (
        "web/index.js",
        "readFileSync('./test/words.csv')",
        "web/test/words.csv",
    ),
    "in a folder of tests": ("pkg/core.py", 'open("tests/fixtures/a.bin")', "tests/fixtures/a.bin"),
}
NO_DATA = {
    "named by no code": ("src/lib.rs", "pub fn a() {}", "tests/fixtures/a.txt"),
    "named only by what runs the tests": ("src/lib.rs", "pub fn a() {}", "tests/ref/a.png"),
    "that was there": (
        "src/lib.rs",
        'include_str!("../tests/fixtures/old.txt")',
        "tests/fixtures/old.txt",
    ),
    "a snapshot that was there": (
        "src/parser.rs",
        "assert_snapshot!(x);",
        "src/snapshots/old.snap",
    ),
    "a hidden snapshot": ("src/parser.rs", "assert_snapshot!(x);", "src/snapshots/hidden.snap"),
    "that tests of the base know": (
        "src/lib.rs",
        'include_str!("../tests/optional.json")',
        "tests/optional.json",
    ),
    "a snapshot of a script's tests": (
        "src/index.js",
        "'c.test.js.snap'",
        "src/__snapshots__/c.test.js.snap",
    ),
    "a mock": ("pkg/core.py", '"__mocks__/fs.js"', "__mocks__/fs.js"),
    "a test of documentation": ("pkg/core.py", '"test_a.txt"', "new/tests/test_a.txt"),
    "configuration": ("pkg/core.py", '"tests/package.json"', "tests/package.json"),
    "hidden configuration": ("pkg/core.py", '".babelrc"', "tests/.babelrc"),
    "configuration of a compiler": ("pkg/core.py", '"tests/tsconfig.json"', "tests/tsconfig.json"),
    "code": ("pkg/core.py", 'open("tests/fixtures/plugin.py")', "tests/fixtures/plugin.py"),
    "code in a new folder": ("web/index.js", "readFileSync('test/a.js')", "web/test/a.js"),
    "code that shadows a module": (
        "src/lib.rs",
        'include_str!("../tests/json.py")',
        "tests/json.py",
    ),
}


@pytest.mark.parametrize(
    ("user", "line", "path", "is_kept"),
    [(*case, True) for case in DATA.values()] + [(*case, False) for case in NO_DATA.values()],
    ids=[*DATA, *NO_DATA],
)
def test_data_of_the_library_is_kept_whatever_its_folder(
    tmp_path: Path, user: str, line: str, path: str, is_kept: bool
) -> None:
    base = base_with(tmp_path, CRATE)
    real = RealRepo(base.objects.parent.parent)
    after = CRATE | {
        user: text(f"{line}\n"),
        path: text("new\n"),
        "tests/mine.rs": text(f"{path}\n"),
    }
    with TreeStore(base) as store:
        patch = real.diff(base.commit, real.commit(after, base.commit))
        work = drop_protected_files(
            patch, ProtectedFiles(frozenset({"src/snapshots/hidden.snap"}), base=base.paths), store
        )
        assert set(store.changes(work.tree)) == {user, *([path] if is_kept else [])}


@pytest.mark.parametrize("mode", ["100755", "120000"])
def test_programs_and_links_are_no_data(tmp_path: Path, mode: str) -> None:
    after = REPO | {"src/x.py": text("two\n"), "src/testdata/run": BaseFile(mode, b"x")}
    assert Judged(tmp_path, after).work.dropped == (DroppedFile("src/testdata/run", "test_file"),)


def test_config_changed_by_golden_patch_is_allowed(tmp_path: Path) -> None:
    """Those that it leaves as they are, in the same kind of file, are not."""
    ini, real = "[tool.pytest.ini_options]\nmarkers = []\n", RealRepo(tmp_path / "real")
    base: Files = {
        "pyproject.toml": text(ini),
        "package.json": text('{"jest": {}}\n'),
        "vite.config.ts": text("export default {}; // test\n"),
    }
    golden: Files = {
        **base,
        "pyproject.toml": text(ini.replace("[]", '["slow"]')),
        "package.json": text('{"jest": {}, "type": "module"}\n'),
        "vite.config.ts": text("export default { base: 'x' }; // test\n"),
    }
    feature = Task("r", 1, tmp_path, (1,)).feature(1)
    feature.path.mkdir()
    first = real.commit(base)
    feature.patch.write_bytes(real.diff(first, real.commit(golden, first)))
    feature.tests.write_bytes(b"--- /dev/null\n+++ b/tests/test_a.py\n@@ -0,0 +1 @@\n+x = 1\n")
    other = {**golden, "package.json": text('{"jest": {"bail": 1}}\n')}
    with TreeStore(base_with(tmp_path, base)) as store:
        side = ProtectedFiles(*feature_paths(feature, store), base=tuple(base))
        assert drop_protected_files(feature.patch.read_bytes(), side, store).dropped == ()
        work = drop_protected_files(real.diff(first, real.commit(other, first)), side, store)
        assert [file.path for file in work.dropped] == ["package.json"]
