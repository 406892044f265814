"""Gives pairs to the jobs of an engine, and collects their results.

jobs.json (batch.json for Google Batch) is written before jobs are submitted: the same command finds those of a driver
that was killed. A pair whose job ended without an outcome goes to another one, as often as the engine says; then it is
an infrastructure error.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from cooperbench.agents.session import AgentProgress
from cooperbench.errors import CooperBenchError, InfraError, RunStopped, UserError
from cooperbench.eval.evaluation_files import read_patches, write_failure
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.models import Message, Pair, Usage, agent_slots
from cooperbench.records import to_object
from cooperbench.retry import finish_despite_interrupts
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.job import Event, JobOrder, key_of, pack_folder, unpack_folder
from cooperbench.runner.experiment import Arm, Budget, interleaved, write_error
from cooperbench.storage import is_finished, read_json, write_bytes, write_json
from cooperbench.temporary import owned_prefix, remove_tree
from cooperbench.text import plural

JOBS_SCHEMA = "cooperbench.jobs/1"


class Engine(Protocol):
    """Starts jobs on other machines. Called from one thread."""

    name: str
    poll_seconds: float
    attempts: int
    """Jobs that a pair is given to, until one of them ends with an outcome."""
    max_jobs: int
    """That may be submitted at a time; it lets `RunConfig.max_jobs` of them run at once."""

    def check(self, seen: Sequence[Path]) -> None:
        """UserError for what can be known to be wrong by now; finds out what of these nodes see, results first."""
        ...

    def sees(self, path: Path) -> bool:
        """Whether a path is the same file or folder on every node."""
        ...

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        """UserError where they are refused: then there are no jobs."""
        ...

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """What jobs have told since the last call; `lost` for those of `jobs` that ended without a `done`."""
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


def jobs_on_record(path: Path) -> dict[str, list[str]]:
    """Jobs of an earlier call, with the keys of their pairs."""
    record = read_json(path) or {}
    return dict(record["jobs"]) if record.get("schema") == JOBS_SCHEMA else {}


def batches_of(jobs: Iterable[str]) -> set[str]:
    """Those that these jobs were submitted with."""
    return {job.partition(".")[0] for job in jobs}


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
            raise UserError(
                f"{option} {text!r} is no list of key=value, e.g. partition=cpu,mem=16G"
            )
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
        engine.check((config.logs_dir, config.dataset_dir, *config.user_files))
        yield engine
    finally:
        engine.close(keep_files=True)


class Driver:
    """One call of `run`, `ablate` or `eval` whose pairs are worked on by jobs."""

    def __init__(
        self, engine: Engine, arms: Sequence[Arm], display: Display, budget: Budget
    ) -> None:
        self._engine = engine
        self._config = arms[0].config
        paths = self._config.paths
        self._record = paths.batch_record if engine.name == "batch" else paths.jobs_record
        self._carries_logs = not engine.sees(self._config.logs_dir)
        self._folders = set() if self._carries_logs else {arm.config.paths.jobs for arm in arms}
        self._work: dict[str, tuple[RunConfig, Pair]] = {}
        """What has no outcome yet, by key, with the configuration of its job."""
        to_evaluate = [(arm.config, pair) for arm in arms for pair in arm.to_evaluate]
        there = {arm.config.run_name + arm.config.setting: _for_jobs(arm.config) for arm in arms}
        for config, pair in (*to_evaluate, *interleaved(arms)):
            self._work[key_of(config, pair)] = there[config.run_name + config.setting], pair
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
        self._packed = cache(_pack)
        self._known = cache(lambda feature: tuple(ReferenceStore().about(feature)))

    def work_off(self) -> None:
        """Returns when each pair has an outcome, or may not start any more. Whatever is raised ends all jobs."""
        for config, pair in self._work.values() if self._config.force else ():
            if not config.evaluate_only:
                config.paths.archive(pair, config.setting)
        try:
            self._find_jobs()
            self._hold_if_spent()
            at_work = {key for keys in self._active.values() for key in keys}
            self._to_submit.extend(key for key in self._work if key not in at_work)
            while self._active or self._to_submit:
                self._submit()
                self._gather()
                self._replaying = False
                if self._active:
                    time.sleep(self._engine.poll_seconds)
        except BaseException:
            # Several Ctrl-C leave nothing at work either.
            try:
                finish_despite_interrupts(self._cancel)
            finally:
                finish_despite_interrupts(self._forget_jobs)
            raise
        self._forget_jobs()

    def _gather(self) -> None:
        for job, event in self._engine.events(self._active):
            if job in self._active:
                self._handle(job, event)

    def _cancel(self) -> None:
        if self._carries_logs:
            # What they have done until now is here only when they have told.
            with suppress(CooperBenchError):
                self._gather()
        self._engine.cancel(self._active)

    def _forget_jobs(self) -> None:
        self._record.unlink(missing_ok=True)
        try:
            self._engine.close(keep_files=self._any_failed)
        except CooperBenchError as error:
            # What was done is here.
            self._display.note(str(error))
        for folder in self._folders if not self._any_failed else ():
            remove_tree(folder)

    def _find_jobs(self) -> None:
        """Those of a driver that was killed: they count as ours until the engine says that they have ended."""
        for job, keys in jobs_on_record(self._record).items():
            if any(key in self._work for key in keys):
                self._active[job] = keys
                # Not as attempts of this call: a cluster may have been cleaned up, or patches changed, meanwhile.
                self._attempts.subtract(keys)
        if self._active:
            self._replaying = True
            self._display.note(f"Found {plural(len(self._active), 'job')} of an earlier call")

    def _submit(self) -> None:
        """Fill up: all that the engine takes at first, later as many as have ended."""
        while self._held and self._to_submit:
            del self._work[self._to_submit.popleft()]
            self._budget.try_start()
        most = self._config.max_jobs if self._active else self._engine.max_jobs
        free = most - len(self._active)
        if free <= 0 or not self._to_submit:
            return
        batch = secrets.token_hex(4)
        jobs: dict[str, list[str]] = {}
        while self._to_submit and len(jobs) < free:
            size = min(self._config.pairs_per_job or 1, len(self._to_submit))
            jobs[f"{batch}.{len(jobs)}"] = [self._to_submit.popleft() for _ in range(size)]
        self._active |= jobs
        # First: from now on it says which jobs there may be, also after a crash.
        record = {"schema": JOBS_SCHEMA, "engine": self._engine.name, "jobs": self._active}
        write_json(self._record, record)
        try:
            self._engine.submit(batch, [self._order(job, keys) for job, keys in jobs.items()])
        except UserError:
            self._active = {job: keys for job, keys in self._active.items() if job not in jobs}
            raise

    def _order(self, job: str, keys: Sequence[str]) -> JobOrder:
        """With the files that nodes do not see."""
        work = tuple(self._work[key] for key in keys)
        files: dict[tuple[Path, bytes], None] = {}
        for config, pair in work:
            paths = config.paths.pair(pair, config.setting)
            if self._carries_logs and paths.result.exists():
                patches = [
                    paths.agent(slot.agent_id).patch for slot in agent_slots(pair, config.setting)
                ]
                names = [path.name for path in (paths.result, *patches)]
                files[paths.folder, pack_folder(paths.folder, names)] = None
            for path in (pair.task.path, *config.user_files):
                if not self._engine.sees(path):
                    files[self._packed(path)] = None
        features = (
            [feature for _, pair in work for feature in pair.features] if self._carries_logs else []
        )
        known = tuple(one for feature in features for one in self._known(feature))
        return JobOrder(job, work, tuple(files), self._carries_logs, known)

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
                if kind == "evaluated" and event["files"]:
                    record = self._take_in(event)
                last = self._attempts[event["pair"]] + 1 >= self._engine.attempts
                if record.get("status") == "error" and record.get("infrastructure") and not last:
                    # Of its node, perhaps: a full disk, an engine that has died.
                    self._reasons[job] = record["error"]
                else:
                    self._handle_pair(kind, event, record)

    def _handle_pair(self, kind: str, event: Event, record: dict[str, Any]) -> None:
        config, pair = self._work[event["pair"]]
        match kind:
            case "started":
                self._display.pair_started(pair, agent_slots(pair, config.setting))
            case "outage":
                self._display.outage(pair, event["agent_id"], event["reason"])
            case "progress":
                progress = AgentProgress(**event["progress"])
                self._display.agent_progress(pair, event["agent_id"], progress)
            case "message":
                self._display.message(pair, Message(**event["message"]))
            case "ended":
                if event["files"]:
                    config.paths.archive(pair, config.setting)
                    folder = config.paths.pair(pair, config.setting).folder
                    unpack_folder(base64.b64decode(event["files"]), folder)
                self._display.pair_ended(pair, record)
                if not config.auto_eval or record["status"] != "completed":
                    self._settle(event["pair"])
            case "evaluated":
                self._display.evaluated(pair, record)
                self._settle(event["pair"])

    def _take_in(self, event: Event) -> dict[str, Any]:
        """What now is eval.json: the verdict that came, if it is one on what lies here now."""
        config, pair = self._work[event["pair"]]
        place, record = config.paths.pair(pair, config.setting), dict(event["record"])
        patches, digest = (
            read_patches(place, pair, config.setting),
            str(record.get("image_digest", "")),
        )
        options = EvaluationOptions(config.test_timeout_seconds, config.eval_network, config.canary)
        key = evaluation_key(pair, patches, digest, options)
        try:
            if record["status"] != "error" and record["key"] != key:
                raise InfraError(
                    f"the result of {pair.label} is of other patches or tests than those here"
                )
            with TemporaryDirectory(prefix=owned_prefix("verdict")) as came:
                unpack_folder(base64.b64decode(event["files"]), Path(came))
                remove_tree(place.folder / "tests")
                place.merged_patch.unlink(missing_ok=True)
                for path in (*Path(came).glob("tests/*.txt"), *Path(came).glob("merged.patch")):
                    write_bytes(place.folder / path.relative_to(came), path.read_bytes())
            ReferenceStore().add(event["references"])
        except CooperBenchError as error:
            return to_object(write_failure(config.paths, pair, config.setting, error))
        # Last: where it exists, all files that it refers to exist too.
        write_json(place.evaluation, record)
        return record

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
            left = Arm(config, [pair]).planned()
            self._attempts[key] += not self._held
            if not left.to_run and not left.to_evaluate:
                # It was killed after it had written the outcome, and before it could tell.
                self._settle(key)
            elif self._attempts[key] < self._engine.attempts:
                if not self._held:
                    self._display.note(
                        f"{pair.label}: job {job} ended: {reason}; it goes to another job"
                    )
                self._to_submit.append(key)
            else:
                tried = plural(self._engine.attempts, "job")
                self._fail(config, pair, InfraError(f"{tried} ended without an outcome: {reason}"))
                self._settle(key)

    def _fail(self, config: RunConfig, pair: Pair, error: InfraError) -> None:
        self._any_failed = True
        if config.evaluate_only or is_finished(config.paths.pair(pair, config.setting)):
            failure = write_failure(config.paths, pair, config.setting, error)
            self._display.evaluated(pair, to_object(failure))
        else:
            self._display.pair_ended(pair, write_error(config, pair, error))


def _for_jobs(config: RunConfig) -> RunConfig:
    """Agents of one pair at a time, and a share of all evaluations at once. A job that is started again must not run
    again what it has finished."""
    force, logs_dir = config.force and config.evaluate_only, config.logs_dir.absolute()
    share = -(-config.eval_concurrency // config.max_jobs)
    return replace(config, force=force, concurrency=1, eval_concurrency=share, logs_dir=logs_dir)


def _pack(path: Path) -> tuple[Path, bytes]:
    """A folder, or one file of it, and where it belongs."""
    if path.is_dir():
        return path.absolute(), pack_folder(path.resolve())
    return path.parent.absolute(), pack_folder(path.parent, (path.name,))
