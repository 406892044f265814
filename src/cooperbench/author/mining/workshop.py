"""One base commit at work: which candidates hold on it, alone and together, and the task of them.

The task is made in a folder for drafts and moved to the dataset when it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cooperbench.author.change_text import read_change_text
from cooperbench.author.detect import detect_project
from cooperbench.author.drafts import Material, draft_from_history
from cooperbench.author.languages.locks import LOCK_FILES
from cooperbench.author.mining.culprits import choose_culprit
from cooperbench.author.mining.plan import MIN_FEATURES, BasePlan, Placement
from cooperbench.author.mining.state import HOLDS, MiningState
from cooperbench.author.mining.transplant import Conflict, Content, Transplanter
from cooperbench.author.project import Project
from cooperbench.author.repository import find_version
from cooperbench.author.split import CommitPatches, find_git_dir, split_tree
from cooperbench.author.task_files import (
    FeatureDraft,
    TaskOrigin,
    create_task,
    repo_name,
    write_feature_files,
)
from cooperbench.author.task_info import FeatureInfo, set_feature_info
from cooperbench.errors import CooperBenchError, Interrupted, UserError
from cooperbench.eval.base_commit import base_of_clone
from cooperbench.eval.conditions import conditions_to_try
from cooperbench.eval.golden_runs import GoldenRuns
from cooperbench.eval.patch_tester import PatchTester
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.references import References
from cooperbench.eval.trees import TreeStore
from cooperbench.models import EvalNetwork, Feature, Task
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.storage import write_bytes
from cooperbench.temporary import remove_tree
from cooperbench.text import names_for_error

_MANIFESTS = (
    *("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "package.json", "package-lock.json"),
    *("pnpm-lock.yaml", "yarn.lock", "go.mod", "Cargo.toml", "Cargo.lock"),
    *LOCK_FILES,
)
_PASSES_WITHOUT = "its tests pass without it"


class BrokenBase(Exception):
    """A base commit that cannot be used; its text says why."""


@dataclass(frozen=True)
class MiningSettings:
    """The options of a mining call."""

    repo: Path
    name: str
    dataset_dir: Path
    subfolder: str
    max_features: int
    """Features per task; 0: as many as there are candidates for."""
    timeout_seconds: int
    network: EvalNetwork
    concurrency: int

    @property
    def drafts(self) -> Path:
        """The folder for tasks that are not complete, and for the state."""
        return self.dataset_dir / ".mining"


@dataclass(frozen=True)
class MiningContext:
    """The objects that all base commits of one call share."""

    settings: MiningSettings
    state: MiningState
    sandboxes: SandboxManager
    transplanter: Transplanter
    note: Callable[[str], None]


@dataclass(frozen=True)
class HoldingFeature:
    """A candidate that holds on a base."""

    placement: Placement
    feature: Feature
    patches: CommitPatches


class Workshop:
    """Tries the candidates of one plan on their base commit."""

    def __init__(self, plan: BasePlan, context: MiningContext) -> None:
        settings = context.settings
        self._plan = plan
        self._settings = settings
        self._state = context.state
        self._sandboxes = context.sandboxes
        self._transplanter = context.transplanter
        self._note = context.note
        self._repo = repo_name(settings.name)
        self._git_dir = find_git_dir(settings.repo)
        # The same tree as in the task's bundle; here are the new files, too.
        self._base = base_of_clone(self._git_dir, plan.base)
        self._tester = PatchTester(context.sandboxes, settings.timeout_seconds)
        self._references = References(self._tester, settings.network)

    def make_task(self, task_id: int, pool: Executor) -> tuple[Task, list[str]] | None:
        """Return a new task in the dataset and the commits of its features; None if too few hold.

        Raises:
            BrokenBase: The base cannot be installed, or has no tests.
        """
        task = self._prepare(task_id)
        try:
            holding = self._find_holding(task, pool)
            holding, combined = self._keep_joint(task, holding, pool)
            if len(holding) < MIN_FEATURES:
                return None
            final = self._write_task(task, holding, combined)
        finally:
            remove_tree(task.path)
        return final, [item.placement.commit_id for item in holding]

    def _prepare(self, task_id: int) -> Task:
        settings, base = self._settings, self._plan.base
        try:
            project = detect_project(settings.repo, base, settings.subfolder)
        except UserError as error:
            raise BrokenBase(str(error)) from error
        environment = self._environment_of(project)
        problem = self._state.setup_problem(environment)
        if problem:
            raise BrokenBase(f"{problem} (as on another base)")
        origin = TaskOrigin(settings.repo, base, find_version(settings.repo, base))
        # A folder for each base: images are known by the folders of their tasks.
        drafts = settings.drafts / self._repo / base[:12]
        task = create_task(drafts, settings.name, project, origin, task_id)
        try:
            self._sandboxes.image(task)
        except Interrupted:
            remove_tree(task.path)
            raise
        except CooperBenchError as error:
            remove_tree(task.path)
            if self._sandboxes.stop.is_set():
                raise Interrupted("stopped") from error
            problem = str(error).partition(": ")[2]
            self._state.reject_setup(environment, problem)
            raise BrokenBase(problem) from error
        return task

    def _environment_of(self, project: Project) -> str:
        """Return a checksum of everything that defines what is installed."""
        digest = hashlib.sha256("\n".join(project.install).encode())
        files = self._transplanter.files_of(self._plan.base)
        for path in sorted(files):
            is_manifest = path.rpartition("/")[2] in _MANIFESTS or "requirements" in path
            if is_manifest:
                digest.update(f"{path} {files[path]}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    # Each candidate alone.

    def _find_holding(self, task: Task, pool: Executor) -> list[HoldingFeature]:
        """Try candidates, the nearest first, until there are enough that hold."""
        holding: list[HoldingFeature] = []
        waiting = list(enumerate(self._plan.placements, 1))
        while waiting and len(holding) < self._settings.max_features:
            missing = self._settings.max_features - len(holding)
            number = max(missing, self._settings.concurrency)
            batch, waiting = waiting[:number], waiting[number:]
            futures = [
                pool.submit(self._try_candidate, task, feature_id, placement)
                for feature_id, placement in batch
            ]
            self._sandboxes.drain(futures, lambda _: None)
            results = [future.result() for future in futures]
            holding += [result for result in results if result is not None]
        return holding[: self._settings.max_features]

    def _try_candidate(
        self, task: Task, feature_id: int, placement: Placement
    ) -> HoldingFeature | None:
        base, commit = self._plan.base, placement.commit_id
        earlier_problem = self._state.trial(base, commit)
        if earlier_problem:
            return None
        feature = Task(task.repo, task.task_id, task.path, (feature_id,)).feature(feature_id)
        try:
            patches = self._write_patches(feature, placement)
            problem = patches.problem
            if not problem and earlier_problem is None:
                problem = self._find_problem(feature)
        except Interrupted:
            raise
        except (CooperBenchError, OSError) as error:
            if self._sandboxes.stop.is_set():
                raise Interrupted("stopped") from error
            problem = str(error)
        self._state.add_trial(base, commit, problem)
        return None if problem else HoldingFeature(placement, feature, patches)

    def _write_patches(self, feature: Feature, placement: Placement) -> CommitPatches:
        with TreeStore(self._base) as store:
            files = placement.feature_files | placement.test_files
            patches = split_tree(store, store.edit(store.base.tree, files))
        write_bytes(feature.patch, patches.feature_patch)
        write_bytes(feature.tests, patches.tests_patch)
        return patches

    def _find_problem(self, feature: Feature) -> str:
        """Return why a feature does not hold: it passes its tests, and the base does not."""
        golden = GoldenRuns(self._tester).apply(feature)
        if golden.error:
            return golden.error
        if golden.dropped:
            return f"it changes {golden.dropped[0].path}, which agents may not change"
        conditions = conditions_to_try(self._tester.capabilities, self._settings.network)[0]
        run = self._tester.run_once(feature, golden.patch, golden.tree, conditions)
        if not run.success:
            return f"its tests fail with it: {run.error}"
        reference = self._references.measure(feature)
        if reference.base_passes:
            return _PASSES_WITHOUT
        if reference.failed_runs or not reference.golden.success:
            return "its tests are flaky"
        return HOLDS

    # All together.

    def _keep_joint(
        self, task: Task, holding: Sequence[HoldingFeature], pool: Executor
    ) -> tuple[list[HoldingFeature], bytes]:
        """Return the features that also hold together, and the patch with all of them."""
        # The commits of the history follow each other, so the order of the history has no
        # conflicts where each builds on the one before.
        kept = sorted(holding, key=lambda item: -item.placement.candidate.commit.position)
        while True:
            kept, combined = self._combine(kept)
            if len(kept) < MIN_FEATURES:
                return [], b""
            failed = self._find_failed(task, kept, combined, pool)
            if not failed:
                return kept, combined
            tests = {item.feature.feature_id: item.patches.tests_patch for item in kept}
            culprit = choose_culprit(failed, tests)
            names = names_for_error(sorted(set().union(*failed.values())), limit=2)
            commit = self._plan.placements[culprit - 1].commit_id
            self._note(f"  {commit[:12]} left out: with it others fail: {names or 'all tests'}")
            kept = [item for item in kept if item.feature.feature_id != culprit]

    def _combine(self, holding: Sequence[HoldingFeature]) -> tuple[list[HoldingFeature], bytes]:
        """Apply features one after the other; leave out those that do not fit."""
        base_files = self._transplanter.files_of(self._plan.base)
        files: dict[str, Content] = dict(base_files)
        changed: dict[str, Content | None] = {}
        kept = []
        for item in holding:
            changes = item.placement.candidate.changes
            moved = self._transplanter.move(changes, item.patches.feature_paths, files)
            if isinstance(moved, Conflict):
                commit = item.placement.commit_id
                self._note(f"  {commit[:12]} conflicts with the others in {moved.path}")
                continue
            kept.append(item)
            changed |= moved
            for path, content in moved.items():
                if content is None:
                    files.pop(path, None)
                else:
                    files[path] = content
        with TreeStore(self._base) as store:
            return kept, store.patch_of(store.edit(store.base.tree, changed))

    def _find_failed(
        self, task: Task, holding: Sequence[HoldingFeature], combined: bytes, pool: Executor
    ) -> dict[int, set[str]]:
        """Return the failed tests of the features that fail with the patch of all."""
        features = [item.feature for item in holding]
        tester = self._tester
        with TreeStore(tester.base(task)) as store:
            protected = tester.protected_files(features, store)
            applied = drop_protected_files(combined, protected, store)
        test = partial(self._references.test, patch=applied.patch, tree=applied.tree)
        futures = [pool.submit(test, feature) for feature in features]
        self._sandboxes.drain(futures, lambda _: None)
        runs = [future.result() for future in futures]
        failed: dict[int, set[str]] = {}
        for feature, run in zip(features, runs, strict=True):
            if not run.success:
                outcomes = run.outcomes.items()
                failed[feature.feature_id] = {test for test, end in outcomes if end == "failed"}
        return failed

    def _write_task(self, draft: Task, holding: Sequence[HoldingFeature], combined: bytes) -> Task:
        """Number the features by their age, and move the task to the dataset."""
        for path in draft.path.glob("feature*"):
            remove_tree(path)
        task = Task(draft.repo, draft.task_id, draft.path, tuple(range(1, len(holding) + 1)))
        for number, item in enumerate(holding, 1):
            commit = item.placement.commit_id
            text = read_change_text(self._git_dir, commit)
            material = Material(text, item.patches.feature_patch, item.patches.tests_patch)
            entry = FeatureDraft(
                title=text.title,
                feature_patch=item.patches.feature_patch,
                tests_patch=item.patches.tests_patch,
                description=draft_from_history(material).text,
                is_draft=True,
                source=f"commit {commit}",
            )
            write_feature_files(task.feature(number).path, entry)
            set_feature_info(task, FeatureInfo(number, entry.title, entry.source, is_draft=True))
        write_bytes(task.combined_patch, combined)
        folder = self._settings.dataset_dir / draft.repo / draft.path.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.path.rename(folder)
        return Task(draft.repo, draft.task_id, folder, task.feature_ids)
