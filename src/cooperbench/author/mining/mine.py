"""`cooperbench author mine`: from a history to tasks. The story of mining, step by step."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from cooperbench.author.mining.history import (
    Candidate,
    Commit,
    quick_problem,
    read_candidate,
    read_main_line,
)
from cooperbench.author.mining.plan import MIN_FEATURES, Planner
from cooperbench.author.mining.state import MinedTask, MiningState
from cooperbench.author.mining.workshop import (
    BrokenBase,
    MiningContext,
    MiningSettings,
    Workshop,
)
from cooperbench.author.split import find_git_dir
from cooperbench.author.task_files import next_task_id, repo_name
from cooperbench.errors import UserError
from cooperbench.git import run_git
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.temporary import remove_tree
from cooperbench.text import names_for_error, plural

_FEW_FEATURES = 3
_MANY_FEATURES = 6
_MAX_FAILURES = 3
"""Bases on which a candidate may fail before it is given up."""


@dataclass
class MiningReport:
    """The result of mining."""

    commits: int = 0
    """Commits of the main line that were looked at."""
    candidates: int = 0
    """Commits that change both code and tests."""
    tasks: list[MinedTask] = field(default_factory=list)
    """The tasks, those with most features first."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Why each of the other commits is in no task, by commit."""

    def count_reasons(self) -> list[tuple[str, int]]:
        """Return the reasons without their details, the commonest first."""
        counts = Counter(reason.partition(":")[0] for reason in self.rejected.values())
        return counts.most_common()


class Miner:
    """Mines one repository."""

    def __init__(
        self,
        settings: MiningSettings,
        sandboxes: SandboxManager,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._note = note
        self._git_dir = find_git_dir(settings.repo)
        self._repo = repo_name(settings.name)
        # Parts of a monorepo have different features and tests.
        part = f".{quote(settings.subfolder, safe='')}" if settings.subfolder else ""
        self._state = MiningState(settings.drafts / f"{self._repo}{part}.json")

    @property
    def state_path(self) -> Path:
        """The file with everything that was found out, also by earlier calls."""
        return self._state.path

    def mine(self, tip: str, number_of_commits: int, max_tasks: int) -> MiningReport:
        """Write tasks to the dataset until there are `max_tasks`, with those of earlier calls."""
        with _locked(self._settings.drafts, self._repo):
            remove_tree(self._settings.drafts / self._repo)
            self._state.load()
            self._warn_about_rewritten_history(tip)
            commits = read_main_line(self._git_dir, tip, number_of_commits)
            candidates = self._find_candidates(commits)
            planner = Planner(self._git_dir, candidates)
            with self._threads("plan") as pool:
                for done in planner.find_fitting(pool):
                    if done % 20 == 0:
                        self._note(f"planned {done} of {plural(len(candidates), 'base commit')}")
            self._make_tasks(planner, candidates, max_tasks)
            remove_tree(self._settings.drafts / self._repo)
            return self._report(commits, candidates)

    def _warn_about_rewritten_history(self, tip: str) -> None:
        """Name the tasks whose features may be found again as other commits."""
        gone = []
        for task in self._existing_tasks():
            argv = ("merge-base", "--is-ancestor", task.base, tip)
            if run_git(*argv, git_dir=self._git_dir).returncode != 0:
                gone.append(task.task)
        if gone:
            self._note(
                f"note: {tip[:12]} does not follow the base commit of {names_for_error(gone)}: was"
                " the history rewritten? Remove these tasks, or their features may be found twice"
            )

    def _threads(self, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix=name)

    def _find_candidates(self, commits: list[Commit]) -> list[Candidate]:
        """Return the commits that are features with tests; record why others are not."""
        rejected = self._state.rejected
        reasons: dict[str, str] = {}
        promising = []
        for commit in commits:
            if commit.commit_id in rejected:
                continue
            problem = quick_problem(commit, self._settings.subfolder)
            if problem:
                reasons[commit.commit_id] = problem
            else:
                promising.append(commit)
        self._note(
            f"{plural(len(commits), 'commit')}: {len(promising):,} change code and tests;"
            " splitting them"
        )
        candidates = []
        with self._threads("split") as pool:
            results = pool.map(lambda commit: read_candidate(self._git_dir, commit), promising)
            for commit, result in zip(promising, results, strict=True):
                if isinstance(result, Candidate):
                    candidates.append(result)
                else:
                    reasons[commit.commit_id] = result
        self._state.reject_commits(reasons)
        return candidates

    def _make_tasks(self, planner: Planner, candidates: list[Candidate], max_tasks: int) -> None:
        pool = self._sandboxes.pool(self._settings.concurrency, "mine")
        settings = self._settings
        if not settings.max_features:
            number = _features_per_task(len(candidates), max_tasks)
            settings = replace(settings, max_features=number)
        context = MiningContext(
            settings, self._state, self._sandboxes, planner.transplanter, self._note
        )
        tried: set[str] = set()
        while len(self._existing_tasks()) < max_tasks:
            used = self._used_commits(candidates)
            excluded = {*tried, *self._broken_bases(candidates)}
            plan = planner.best_plan(used, excluded, settings.max_features)
            if plan is None:
                return
            tried.add(plan.base)
            number = len(self._existing_tasks())
            self._note(
                f"[{number}/{max_tasks} tasks] base {plan.base[:12]}:"
                f" {plural(len(plan.placements), 'candidate')} fit"
            )
            task_id = next_task_id(self._settings.dataset_dir, self._settings.name)
            try:
                result = Workshop(plan, context).make_task(task_id, pool)
            except BrokenBase as problem:
                self._state.reject_base(plan.base, str(problem))
                self._note(f"  not usable: {problem}")
                continue
            if result is None:
                self._state.reject_base(plan.base, f"fewer than {MIN_FEATURES} candidates hold")
                self._note(f"  fewer than {MIN_FEATURES} hold")
                continue
            task, commits = result
            self._state.add_task(MinedTask(task.label, plan.base, commits))
            self._note(f"  {task.label}: {plural(len(commits), 'feature')} hold")

    def _existing_tasks(self) -> list[MinedTask]:
        """Return the tasks that are still in the dataset."""
        folder = self._settings.dataset_dir
        return [task for task in self._state.tasks if (folder / task.task).is_dir()]

    def _used_commits(self, candidates: list[Candidate]) -> set[str]:
        """Return the commits that are in a task, and those that were given up."""
        used: set[str] = set()
        for task in self._state.tasks:
            used.update(task.commits)
        for candidate in candidates:
            if self._reason_to_give_up(candidate):
                used.add(candidate.commit.commit_id)
        return used

    def _reason_to_give_up(self, candidate: Candidate) -> str:
        commit_id = candidate.commit.commit_id
        problem = self._state.trial(candidate.commit.parent, commit_id)
        if problem:
            return problem
        failures = self._state.failures_of(commit_id)
        return failures[-1] if len(failures) >= _MAX_FAILURES else ""

    def _broken_bases(self, candidates: list[Candidate]) -> set[str]:
        bases = {candidate.commit.parent for candidate in candidates}
        return {base for base in bases if self._state.base_problem(base)}

    def _report(self, commits: list[Commit], candidates: list[Candidate]) -> MiningReport:
        tasks = self._existing_tasks()
        in_tasks: set[str] = set()
        for task in tasks:
            in_tasks.update(task.commits)
        reasons = self._state.rejected
        rejected = {
            commit.commit_id: reasons[commit.commit_id]
            for commit in commits
            if commit.commit_id in reasons
        }
        for candidate in candidates:
            commit_id = candidate.commit.commit_id
            if commit_id not in in_tasks:
                rejected[commit_id] = self._reason_of_unused(candidate)
        tasks.sort(key=lambda task: -len(task.commits))
        return MiningReport(len(commits), len(candidates), tasks, rejected)

    def _reason_of_unused(self, candidate: Candidate) -> str:
        problem = self._reason_to_give_up(candidate)
        if problem:
            return problem
        failures = self._state.failures_of(candidate.commit.commit_id)
        if failures:
            return failures[-1]
        broken = self._state.base_problem(candidate.commit.parent)
        if broken:
            return f"its base cannot be used: {broken}"
        return "no other feature fits and holds on the same base"


def _features_per_task(candidates: int, tasks: int) -> int:
    """Return a number of features with which there are enough candidates for all tasks."""
    return min(max(candidates // tasks, _FEW_FEATURES), _MANY_FEATURES)


@contextmanager
def _locked(folder: Path, repo: str) -> Iterator[None]:
    """Hold the lock of a repository's mining.

    Raises:
        UserError: Another process holds it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{repo}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; set --dataset-dir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            f"another `cooperbench author mine` is mining {repo}; wait for it"
        ) from None
    finally:
        os.close(descriptor)
