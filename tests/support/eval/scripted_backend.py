"""A third-party backend whose runners are a Python function, and a lab for references on it.

Sandboxes take files and say what a runner would have printed. So a test decides what a package index, a flaky test or a
compiler does, and sees every run.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cooperbench.dataset.discovery import load_tasks
from cooperbench.eval.base_commit import BaseInfo, base_folder, make_git_dir
from cooperbench.eval.conditions import BUILD_PACKAGES
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.references import References
from cooperbench.git import git
from cooperbench.models import REPO_DIR, Image, Task
from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Capabilities, CommandResult, SandboxOptions
from cooperbench.sandbox.manager import SandboxManager
from tests.support.eval.realgit import RealRepo, text
from tests.support.tiny import LINES, text_patch, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cooperbench.models import EvalNetwork
    from cooperbench.sandbox.channel import Channel

    Runner = Callable[["Call"], "tuple[int, str]"]

DIGEST = "sha256:scripted"
_TEST_FILE = re.compile(rb"tests/test_f(\d+)")


class Call(NamedTuple):
    """One runner call."""

    network: str
    image: str
    feature_id: int
    """The feature whose tests run."""
    patch: bytes
    """The patch besides the tests; empty if there is none."""
    env: Mapping[str, str]
    tests: bytes = b""
    """The patch with the tests."""

    @property
    def has_feature(self) -> bool:
        return bool(self.patch)

    @property
    def step(self) -> str:
        """`install`, `build` (with build packages), or what tests have: `bare`, `layer`, `public`."""
        if not self.has_feature and self.network == "public":
            return "build" if "PIP_FIND_LINKS" in self.env else "install"
        if self.network == "public":
            return "public"
        return "bare" if self.image == "bare" else "layer"


class ScriptedSandbox(Sandbox):
    """Keeps files, and calls the backend's runner for the last command."""

    def __init__(self, backend: ScriptedBackend, image: str, options: SandboxOptions) -> None:
        super().__init__(lifetime_seconds=600, workdir=REPO_DIR)
        self._backend, self._image, self._options = backend, image, options
        self.files: dict[str, bytes] = {}

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.files[path] = data

    def read_file(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def run(self, argv: Any, **options: Any) -> CommandResult:
        name = argv[3]
        if name == "build":
            return CommandResult(0, self._backend.build_packages.encode())
        if name == "undo":
            self.files.pop(BUILD_PACKAGES)
        if name in ("keep-wheels", "undo"):
            return CommandResult(0)
        return self.run_last(argv, **options)

    def run_last(self, argv: Any, **options: Any) -> CommandResult:
        test_file = _TEST_FILE.search(self.files["/patches/tests.patch"])
        assert test_file is not None
        call = Call(
            self._options.network,
            self._image,
            int(test_file[1]),
            self.files.get("/patches/feature.patch", b""),
            options["env"],
            self.files["/patches/tests.patch"],
        )
        self._backend.calls.append(call)
        exit_code, output = self._backend.runner(call)
        seconds = self._backend.seconds_of(call)
        if seconds > options["timeout_seconds"]:
            return CommandResult(124, timed_out=True, duration_seconds=options["timeout_seconds"])
        return CommandResult(exit_code, output.encode(), duration_seconds=seconds)

    def open_stream(self, argv: Any) -> Any:
        raise AssertionError(argv)

    def _open_channel(self) -> Channel:
        raise AssertionError("files and commands need none")

    def _remove(self) -> None:
        pass


class ScriptedBackend(Backend):
    """Takes network policies and keeps snapshots."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.calls: list[Call] = []
        self.seconds_of: Callable[[Call], float] = lambda _: 0.01
        """How long a call takes."""
        self.build_packages = ""
        """Names of the packages that builds need and that tests do not."""
        self.snapshots: dict[str, set[str]] = {}
        """Paths of the files in each snapshot, by key."""
        self.capabilities = Capabilities(networks=frozenset({"none", "public"}), snapshots=True)

    def prepare(self, task: Task) -> Image:
        return Image("bare", digest=DIGEST, evaluation_ref="bare")

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> ScriptedSandbox:
        assert options is not None
        return ScriptedSandbox(self, image, options)

    @contextmanager
    def locked_snapshot(self, task: Task, key: str) -> Iterator[str | None]:
        yield key if key in self.snapshots else None

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        assert isinstance(sandbox, ScriptedSandbox)
        self.snapshots[key] = set(sandbox.files)
        return key


class ReferenceLab:
    """The tiny dataset on a scripted backend; `process` is one experiment after the other."""

    def __init__(self, folder: Path, runner: Runner) -> None:
        """The caller must have set COOPERBENCH_CACHE_DIR."""
        self.backend = ScriptedBackend(runner)
        (self.task,) = load_tasks(write_tiny(folder / "data", feature_ids=(1, 2, 3)))
        self.notes: list[str] = []
        for feature in self.task.features:
            path = f"tests/test_f{feature.feature_id}.py"
            lines = ["def test_area():\n", "    assert area(2, 3) == 6\n"]
            feature.tests.write_text(text_patch(path, None, lines))
        _write_base(folder / "base")

    @contextmanager
    def process(self, policy: EvalNetwork = "auto") -> Iterator[References]:
        """References as a new process has them; notes and calls are counted anew."""
        self.backend.calls.clear()
        self.notes.clear()
        with SandboxManager(self.backend) as sandboxes:
            tester = PatchTester(sandboxes, timeout_seconds=60)
            yield References(tester, policy, note=self.notes.append)

    @property
    def steps(self) -> list[str]:
        """The steps of this process's runner calls, in order."""
        return [call.step for call in self.backend.calls]


def _write_base(scratch: Path) -> None:
    """Put the base commit into the cache, as if it had been read from the image."""
    repository = RealRepo(scratch)
    files = {"app.txt": text("".join(LINES)), "tests/base.sh": text("true\n")}
    commit = repository.commit(files)
    folder = base_folder(DIGEST)
    git_dir = make_git_dir(folder / "git")
    pack = repository.git("pack-objects", "--revs", "--stdout", "-q", stdin=f"{commit}\n".encode())
    git("index-pack", "--stdin", git_dir=git_dir, stdin=pack)
    (folder / "base.json").write_bytes(msgspec.json.encode(BaseInfo(commit, [])))


def pytest_output(**outcomes: bool) -> tuple[int, str]:
    """What pytest prints for tests by name, and its exit code."""
    lines = []
    for name, has_passed in outcomes.items():
        lines.append(f"tests/test_x.py::{name} {'PASSED' if has_passed else 'FAILED'}")
    failed = list(outcomes.values()).count(False)
    passed = len(outcomes) - failed
    counts = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
    lines.append(f"=== {counts} in 0.01s ===")
    return (1 if failed else 0), "\n".join(lines) + "\n"
