"""Hands out pairs to the jobs of an engine, and gathers what they did. The plan and the truth stay on disk, here.

jobs.json is written before jobs are submitted and removed when none is left: a driver that is killed leaves its jobs at
work, and the same command finds them again. A pair whose job ended without an outcome goes to another job, up to
`ATTEMPTS` times; then it is an infrastructure error, which is never scored.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from cooperbench.errors import InfraError, RunStopped, UserError
from cooperbench.eval.batch.entry import pack_folder, unpack_folder
from cooperbench.eval.evaluator import write_failure
from cooperbench.models import Message, Pair, Usage, seats_of
from cooperbench.processes import finished
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.worker import Event, JobOrder, key_of
from cooperbench.runner.experiment import JOBS_SCHEMA, Arm, Budget, jobs_on_record, write_error
from cooperbench.storage import is_finished, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import plural


class Engine(Protocol):
    """Starts jobs on other machines. Called from one thread."""

    name: str
    poll_seconds: float
    most_jobs: int
    """That may be submitted at a time; it lets `RunConfig.most_jobs` of them run at once."""

    def check(self, seen: Sequence[Path]) -> None:
        """UserError for whatever can be known to be wrong before anything is submitted.

        It also finds out whether nodes see these paths; the first is where results are.
        """
        ...

    def sees(self, path: Path) -> bool:
        """Whether a path is the same file or folder on every node."""
        ...

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None: ...

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """What jobs have told since the last call, with their names.

        `lost` for those of `jobs`, also of an earlier driver, that have ended without telling it, with what is known.
        """
        ...

    def hold(self, jobs: Collection[str]) -> None:
        """No pair of these begins any more; those at work go on."""
        ...

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs, and return when they have ended."""
        ...

    def close(self, *, keep_files: bool) -> None:
        """No job is left. What they printed is kept if somebody has to look at it."""
        ...


def parse_options(text: str | None, option: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping; a part without `=` belongs to the value before it (`nodelist=n1,n2`)."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        if equals and name:
            found[name.lstrip("-")] = value
        elif found:
            found[next(reversed(found))] += f",{part}"
        else:
            raise UserError(f"{option} {text!r} is no list of key=value, e.g. partition=cpu,mem=16G")
    return found


@contextmanager
def open_engine(config: RunConfig) -> Iterator[Engine]:
    """The one that `--executor` names, checked."""
    engine: Engine
    if config.executor == "slurm":
        from cooperbench.runner.executors.slurm_engine import SlurmEngine

        engine = SlurmEngine(config)
    else:
        from cooperbench.runner.executors.ray_engine import RayEngine

        engine = RayEngine(config)
    try:
        engine.check((config.logs_dir, config.dataset_dir, *filter(None, config.agent_config_paths)))
        yield engine
    finally:
        engine.close(keep_files=True)


class Driver:
    """One call of `run` or `eval` whose pairs are worked on by jobs."""

    def __init__(self, engine: Engine, arms: Sequence[Arm], display: Display, budget: Budget) -> None:
        self._engine = engine
        self._config = arms[0].config
        self._paths = self._config.paths
        self._work = {
            key_of(arm.config, pair): (arm.config, pair)
            for arm in arms
            for pair in (*arm.to_evaluate, *arm.to_run)
        }
        """What has no outcome yet, by key."""
        self._display = display
        self._budget = budget
        self._active: dict[str, list[str]] = {}
        """Jobs and the keys of their pairs."""
        self._to_submit: deque[str] = deque()
        self._attempts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        """Why a job has left a pair without an outcome."""
        self._replaying = False
        self._held = False
        self._any_outcome = False
        self._any_failed = False
        self._notes: set[str] = set()
        self._packed = cache(pack_folder)
        self._configs: dict[str, RunConfig] = {}
        """Of jobs, by setting."""

    def work_off(self) -> None:
        """Returns when each pair has an outcome, or may not start any more. Whatever is raised ends all jobs."""
        for config, pair in self._work.values():
            if config.force and not config.evaluate_only:
                # A job that is started again must not run again what it has finished.
                config.paths.archive(pair, config.setting)
        try:
            self._find_jobs()
            self._hold_if_spent()
            at_work = {key for keys in self._active.values() for key in keys}
            self._to_submit.extend(key for key in self._work if key not in at_work)
            while self._active or self._to_submit:
                self._submit()
                for job, event in self._engine.events(self._active):
                    if job in self._active:
                        self._handle(job, event)
                self._replaying = False
                if self._active:
                    time.sleep(self._engine.poll_seconds)
        except BaseException:
            # Twice Ctrl-C leaves nothing at work either.
            finished(lambda: self._engine.cancel(self._active))
            self._forget_jobs()
            raise
        self._forget_jobs()

    def _forget_jobs(self) -> None:
        self._paths.jobs_record.unlink(missing_ok=True)
        self._engine.close(keep_files=self._any_failed)
        if not self._any_failed:
            remove_tree(self._paths.jobs)

    def _find_jobs(self) -> None:
        """Those of a driver that was killed: they count as ours until the engine says that they have ended."""
        for job, keys in jobs_on_record(self._paths).items():
            if any(key in self._work for key in keys):
                self._active[job] = keys
        if self._active:
            self._replaying = True
            self._display.note(f"Found {plural(len(self._active), 'job')} of an earlier call")

    def _submit(self) -> None:
        """Fill up: all that the engine takes at first, later as many as have ended."""
        while self._held and self._to_submit:
            del self._work[self._to_submit.popleft()]
            self._budget.lets_start()
        most = self._config.most_jobs if self._active else self._engine.most_jobs
        free = most - len(self._active)
        if free <= 0 or not self._to_submit:
            return
        batch = secrets.token_hex(4)
        jobs: dict[str, list[str]] = {}
        while self._to_submit and len(jobs) < free:
            jobs[f"{batch}.{len(jobs)}"] = self._next_keys()
        self._active |= jobs
        # First: whatever happens from now on, it says what there may be.
        record = {"schema": JOBS_SCHEMA, "engine": self._engine.name, "jobs": self._active}
        write_json(self._paths.jobs_record, record)
        self._engine.submit(batch, [self._order(job, keys) for job, keys in jobs.items()])

    def _next_keys(self) -> list[str]:
        """Of one job: pairs of one setting."""
        keys = [self._to_submit.popleft()]
        config, _ = self._work[keys[0]]
        while self._to_submit and len(keys) < (config.pairs_per_job or 1):
            if self._work[self._to_submit[0]][0] is not config:
                break
            keys.append(self._to_submit.popleft())
        return keys

    def _order(self, job: str, keys: Sequence[str]) -> JobOrder:
        """With the folders that nodes do not see."""
        config, _ = self._work[keys[0]]
        pairs = tuple(self._work[key][1] for key in keys)
        carries_logs = not self._engine.sees(config.logs_dir)
        folders = {pair.task.path for pair in pairs if not self._engine.sees(pair.task.path)}
        files = {folder.absolute(): self._packed(folder.resolve()) for folder in folders}
        for pair in pairs if carries_logs else ():
            folder = config.paths.pair(pair, config.setting).folder
            if (folder / "result.json").exists():
                files[folder.absolute()] = pack_folder(folder)
        agent_configs: dict[Path, list[str]] = {}
        for path in filter(None, config.agent_config_paths):
            if not self._engine.sees(path):
                agent_configs.setdefault(path.parent.absolute(), []).append(path.name)
        files |= {folder: self._packed(folder, tuple(names)) for folder, names in agent_configs.items()}
        if config.setting not in self._configs:
            # Agents do not work again on what they have finished when a job is started once more.
            force, logs_dir = config.force and config.evaluate_only, config.logs_dir.absolute()
            there = replace(config, force=force, concurrency=1, eval_concurrency=1, logs_dir=logs_dir)
            self._configs[config.setting] = there
        return JobOrder(job, self._configs[config.setting], pairs, files, carries_logs)

    def _handle(self, job: str, event: Event) -> None:
        match event["kind"]:
            case "done" | "lost":
                self._end_job(job, event)
            case "note":
                # Each job tells it of its task.
                if event["text"] not in self._notes:
                    self._notes.add(event["text"])
                    self._display.note(event["text"])
            case "spent":
                # What an earlier driver's jobs have told was on disk when this one began.
                if not self._replaying:
                    self._budget.spend(Usage(cost=event["cost"]))
                    self._hold_if_spent()
            case kind if event["pair"] in self._work:
                record = event.get("record", {})
                last = self._attempts[event["pair"]] + 1 >= ATTEMPTS
                if record.get("status") == "error" and record.get("infrastructure") and not last:
                    # Of its node, perhaps: a full disk, an engine that has died.
                    self._reasons[job] = record["error"]
                else:
                    self._handle_pair(kind, event, record)

    def _handle_pair(self, kind: str, event: Event, record: dict[str, Any]) -> None:
        config, pair = self._work[event["pair"]]
        if packed := event.get("files"):
            folder = config.paths.pair(pair, config.setting).folder
            if kind == "ended":
                config.paths.archive(pair, config.setting)
            remove_tree(folder / "tests")
            unpack_folder(base64.b64decode(packed), folder)
        match kind:
            case "started":
                self._display.pair_started(pair, seats_of(pair, config.setting))
            case "outage":
                self._display.outage(pair, event["agent_id"], event["reason"])
            case "message":
                self._display.message(pair, Message(**event["message"]))
            case "ended":
                self._display.pair_ended(pair, record)
                if not config.auto_eval or record["status"] != "completed":
                    self._settle(event["pair"])
            case "evaluated":
                self._display.evaluated(pair, record)
                self._settle(event["pair"])

    def _settle(self, key: str) -> None:
        """It has an outcome."""
        self._any_outcome = True
        del self._work[key]

    def _hold_if_spent(self) -> None:
        if self._budget.is_spent and not self._held:
            self._held = True
            self._display.note("The budget (--max-cost) is spent: no new pair starts")
            self._engine.hold(self._active)

    def _end_job(self, job: str, event: Event) -> None:
        if event.get("refused"):
            if event["stops"] or not self._any_outcome:
                raise RunStopped(event["error"])
            self._display.note(event["error"])
        reason = self._reasons.pop(job, event.get("error") or "it ended without working on it")
        for key in self._active.pop(job):
            if key not in self._work:
                continue
            config, pair = self._work[key]
            left = Arm(replace(config, force=False), [pair]).planned()
            if not left.to_run and not left.to_evaluate:
                # It was killed after it had written the outcome, and before it could tell.
                self._settle(key)
                continue
            self._attempts[key] += not self._held
            if self._attempts[key] < ATTEMPTS:
                if not self._held:
                    self._display.note(f"{pair.label}: job {job} ended: {reason}; it goes to another job")
                self._to_submit.append(key)
            else:
                self._fail(config, pair, f"{ATTEMPTS} jobs ended without an outcome: {reason}")
                self._settle(key)

    def _fail(self, config: RunConfig, pair: Pair, reason: str) -> None:
        self._any_failed = True
        if config.evaluate_only or is_finished(config.paths.pair(pair, config.setting)):
            record = write_failure(config.paths, pair, config.setting, InfraError(reason))
            self._display.evaluated(pair, record)
        else:
            self._display.pair_ended(pair, write_error(config, pair, InfraError(reason)))
