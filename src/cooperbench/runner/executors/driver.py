"""Hands out pairs to the jobs of an engine, and gathers what they did. The plan and the truth stay on disk, here.

jobs.json is written before jobs are submitted and removed when none is left: a driver that is killed leaves its jobs at
work, and the same command finds them again. A pair whose job ended without an outcome goes to another job, up to
`ATTEMPTS` times; then it is an infrastructure error, which is never scored.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from cooperbench.errors import InfraError, RunStopped, UserError
from cooperbench.eval.batch.entry import unpack_folder
from cooperbench.eval.evaluator import is_evaluated, write_failure
from cooperbench.models import Message, Usage, seats_of
from cooperbench.processes import finished
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.executors import key_of
from cooperbench.runner.pair import RESULT_SCHEMA
from cooperbench.storage import error_record, is_finished, read_json, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cooperbench.models import Pair, Setting
    from cooperbench.runner.display import Display
    from cooperbench.runner.executors import Carried, Engine, Event, JobOrder, Work
    from cooperbench.runner.plan import Budget
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.jobs/1"


class Driver:
    """One call of `run` or `eval` whose pairs are worked on by jobs."""

    def __init__(
        self,
        engine: Engine,
        order: JobOrder,
        pack: Callable[[Sequence[Work]], Carried],
        display: Display,
        budget: Budget,
        workers: int,
        pairs_per_job: int,
    ) -> None:
        self._engine = engine
        self._order = order
        self._paths = order.judging.paths
        self._pack = pack
        self._display = display
        self._budget = budget
        self._workers = workers
        self._pairs_per_job = pairs_per_job
        self._active: dict[str, list[str]] = {}
        """Jobs and the keys of their pairs."""
        self._work: dict[str, Work] = {}
        """What has no outcome yet, by key."""
        self._to_submit: list[str] = []
        self._attempts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._replaying = False
        self._held = False
        self._any_outcome = False
        self._any_failed = False
        self._told: set[str] = set()

    def work_off(self, work: Iterable[Work]) -> None:
        """Returns when each pair has an outcome, or may not start any more. Whatever is raised ends all jobs."""
        self._work = {key_of(*one): one for one in work}
        try:
            self._find_jobs()
            self._hold_if_spent()
            at_work = {key for keys in self._active.values() for key in keys}
            self._to_submit = [key for key in self._work if key not in at_work]
            while self._active or self._to_submit:
                self._submit()
                for job, event in self._engine.events():
                    self._handle(job, event)
                self._replaying = False
                for job, reason in self._engine.ended(self._active).items():
                    self._job_over(job, self._reasons.pop(job, reason))
                if self._active:
                    time.sleep(self._engine.poll_seconds)
        except BaseException:
            # Twice Ctrl-C leaves nothing at work either.
            finished(lambda: self._engine.cancel(self._active))
            self._forget_jobs()
            raise
        self._forget_jobs()

    def _find_jobs(self) -> None:
        """Those of a driver that was killed: they count as ours until the engine says that they have ended."""
        record = read_record(self._paths, self._engine.name)
        self._active = {
            job: list(keys) for job, keys in record.items() if any(key in self._work for key in keys)
        }
        if self._active:
            self._replaying = True
            self._display.note(f"Found {plural(len(self._active), 'job')} of an earlier call")

    def _submit(self) -> None:
        """Fill up: all that the engine takes at first, later as many as have ended."""
        if self._held:
            for key in self._to_submit:
                self._budget.lets_start(self._work.pop(key)[0])
            self._to_submit = []
        free = (self._engine.most_jobs if not self._active else self._workers) - len(self._active)
        if free <= 0 or not self._to_submit:
            return
        pairs = free * self._pairs_per_job
        now, self._to_submit = self._to_submit[:pairs], self._to_submit[pairs:]
        batch = secrets.token_hex(4)
        jobs = {
            f"{batch}.{number}": now[start : start + self._pairs_per_job]
            for number, start in enumerate(range(0, len(now), self._pairs_per_job))
        }
        self._active |= jobs
        # First: whatever happens from now on, it says what there may be.
        write_json(
            self._paths.jobs_record, {"schema": SCHEMA, "engine": self._engine.name, "jobs": self._active}
        )
        orders = []
        for job, keys in jobs.items():
            work = tuple(self._work[key] for key in keys)
            orders.append(replace(self._order, job=job, work=work, carried=self._pack(work)))
        self._engine.submit(batch, orders)

    def _forget_jobs(self) -> None:
        self._paths.jobs_record.unlink(missing_ok=True)
        self._engine.close(keep_files=self._any_failed)
        if not self._any_failed:
            remove_tree(self._paths.jobs)

    def _handle(self, job: str, event: Event) -> None:
        kind = event["kind"]
        if job not in self._active:
            return
        if kind == "done":
            self._job_over(job, self._reasons.pop(job, "it ended without working on it"))
        elif kind == "note":
            # Each job tells it of its task.
            if event["text"] not in self._told:
                self._told.add(event["text"])
                self._display.note(event["text"])
        elif kind == "failed":
            self._reasons[job] = event["error"]
        elif kind == "refused":
            self._reasons[job] = event["error"]
            if event["stops"] or not self._any_outcome:
                raise RunStopped(event["error"])
            self._display.note(event["error"])
        elif kind == "spent":
            # What an earlier driver's jobs have told was on disk when this one began.
            if not self._replaying:
                self._budget.spend(Usage(cost=event["cost"]))
                self._hold_if_spent()
        elif event["pair"] in self._work:
            record = event.get("record", {})
            last = self._attempts[event["pair"]] + 1 >= ATTEMPTS
            if record.get("status") == "error" and record.get("infrastructure") and not last:
                # Of its node, perhaps: a full disk, an engine that has died.
                self._reasons[job] = record["error"]
            else:
                self._handle_pair(kind, event, *self._work[event["pair"]])

    def _handle_pair(self, kind: str, event: Event, pair: Pair, setting: Setting) -> None:
        if kind == "started":
            self._display.pair_started(pair, seats_of(pair, setting))
        elif kind == "outage":
            self._display.outage(pair, event["agent_id"], event["reason"])
        elif kind == "message":
            self._display.message(pair, Message(**event["message"]))
        elif kind == "ended":
            if packed := event["files"]:
                self._paths.archive(pair, setting)
                unpack_folder(base64.b64decode(packed), self._paths.pair(pair, setting).folder)
            self._display.pair_ended(pair, event["record"])
            if not self._order.judges or event["record"]["status"] != "completed":
                self._done(pair, setting)
        elif kind == "evaluated":
            if packed := event["files"]:
                paths = self._paths.pair(pair, setting)
                remove_tree(paths.folder / "tests")
                unpack_folder(base64.b64decode(packed), paths.folder)
            self._display.evaluated(pair, event["record"])
            self._done(pair, setting)

    def _done(self, pair: Pair, setting: Setting) -> None:
        self._any_outcome = True
        self._work.pop(key_of(pair, setting), None)

    def _hold_if_spent(self) -> None:
        if self._budget.is_spent and not self._held:
            self._held = True
            self._display.note("The budget (--max-cost) is spent: no new pair starts")
            self._engine.hold()

    def _job_over(self, job: str, reason: str) -> None:
        keys = self._active.pop(job, [])
        for key in keys:
            if key not in self._work:
                continue
            pair, setting = self._work[key]
            if not self._is_left(pair, setting):
                # It was killed after it had written the outcome, and before it could tell.
                self._done(pair, setting)
                continue
            self._attempts[key] += not self._held
            if self._attempts[key] < ATTEMPTS:
                if not self._held:
                    self._display.note(f"{pair.label}: job {job} ended: {reason}; it goes to another job")
                self._to_submit.append(key)
            else:
                self._fail(pair, setting, InfraError(f"{ATTEMPTS} jobs ended without an outcome: {reason}"))
                self._done(pair, setting)

    def _is_left(self, pair: Pair, setting: Setting) -> bool:
        """By what is on disk."""
        paths, judging = self._paths.pair(pair, setting), self._order.judging
        if self._order.config and not is_finished(paths):
            return True
        return self._order.judges and not is_evaluated(
            paths, pair, setting, judging.eval_network, judging.canary
        )

    def _fail(self, pair: Pair, setting: Setting, error: InfraError) -> None:
        self._any_failed = True
        paths = self._paths.pair(pair, setting)
        if self._order.config and not is_finished(paths):
            record = {"schema": RESULT_SCHEMA} | error_record(self._paths, pair, setting, error)
            write_json(paths.result, record)
            self._display.pair_ended(pair, record)
        else:
            self._display.evaluated(pair, write_failure(self._paths, pair, setting, error))


def read_record(paths: ExperimentPaths, engine: str | None = None) -> dict[str, list[str]]:
    """Jobs of an earlier driver, with the keys of their pairs; UserError where they are another engine's."""
    record = read_json(paths.jobs_record) or {}
    if record.get("schema") != SCHEMA:
        return {}
    if engine is not None and record["engine"] != engine:
        raise UserError(
            f"jobs of an earlier call may still be at work on {record['engine']}: continue with"
            f" --executor {record['engine']}, or, if none is left there, remove {paths.jobs_record}"
        )
    return dict(record["jobs"])
