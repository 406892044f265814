"""Gives pairs to the jobs of a cluster and collects their results.

jobs.json (batch.json for Google Batch) is written before jobs are submitted, so that the next call
finds the jobs of a driver that was killed. A pair whose job ended without an outcome goes to
another job, up to `Cluster.attempts` times; then it ends with an infrastructure error.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from cooperbench import records
from cooperbench.agents.session import AgentProgress
from cooperbench.errors import CooperBenchError, InfraError, RunStopped, UserError
from cooperbench.eval.evaluation_files import read_patches, write_failure
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.models import Feature, Message, Pair, Usage, agent_slots, patch_slots
from cooperbench.records import JsonObject
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.jobs import JobsRecord
from cooperbench.records.reference import ReferenceRecord
from cooperbench.records.result import PairResult, count_earlier_attempts, is_finished
from cooperbench.retry import finish_despite_interrupts
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.cluster import Cluster
from cooperbench.runner.executors.job import (
    Event,
    JobOrder,
    PackedFolder,
    pack_folder,
    unpack_folder,
    work_key,
)
from cooperbench.runner.plan import Plan, plan_pairs
from cooperbench.runner.schedule import Work, interleave, write_result_error
from cooperbench.storage import write_bytes, write_json
from cooperbench.temporary import owned_prefix, remove_tree
from cooperbench.text import plural

_JOB_NAME = re.compile(r"[A-Za-z0-9_-]+\.[0-9]+")


def read_jobs(path: Path) -> dict[str, list[str]]:
    """Return the jobs of an earlier call, with the keys of their pairs."""
    record = records.read(path, JobsRecord)
    if record is None or record.schema != JobsRecord.SCHEMA:
        return {}
    # Other names could be those of other jobs of the user, which are asked for and cancelled.
    return {job: keys for job, keys in record.jobs.items() if _JOB_NAME.fullmatch(job)}


class Driver:
    """Runs plans in the jobs of a cluster."""

    def __init__(
        self, cluster: Cluster, plans: Sequence[Plan], display: Display, budget: Budget
    ) -> None:
        self._cluster = cluster
        self._plans = plans
        self._config = plans[0].config
        self._display = display
        self._budget = budget
        paths = self._config.paths
        self._record = paths.batch_record if cluster.name == "batch" else paths.jobs_record
        self._open_work: dict[str, Work] = {}
        """Pairs without an outcome, by key, with the configuration for jobs."""
        self._active: dict[str, list[str]] = {}
        """Submitted jobs, with the keys of their pairs."""
        self._to_submit: deque[str] = deque()
        self._attempts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        """Why jobs have left a pair without an outcome."""
        self._carries_logs = False
        """Whether results have to be sent back, because nodes do not see the logs."""
        self._is_replaying = False
        """Whether the current events are those of an earlier driver's jobs."""
        self._is_held = False
        self._has_outcome = False
        self._has_failed_pair = False
        self._shown_notes: set[str] = set()
        self._pack_path = cache(_pack_path)
        self._known_references = cache(_known_references)

    def run(self) -> None:
        """Return when each pair has an outcome or may not start anymore; on errors end all jobs."""
        self._carries_logs = not self._cluster.sees(self._config.logs_dir)
        self._collect_work()
        try:
            self._find_earlier_jobs()
            self._hold_if_spent()
            submitted = {key for keys in self._active.values() for key in keys}
            self._to_submit.extend(key for key in self._open_work if key not in submitted)
            while self._active or self._to_submit:
                self._submit_jobs()
                self._handle_events()
                self._is_replaying = False
                if self._active:
                    time.sleep(self._cluster.poll_seconds)
        except BaseException:
            # Several Ctrl-C must not leave jobs running either.
            try:
                finish_despite_interrupts(self._cancel)
            finally:
                finish_despite_interrupts(self._forget_jobs)
            raise
        self._forget_jobs()

    def _collect_work(self) -> None:
        """List all pairs of the plans and archive results that are to be replaced."""
        work = [Work(plan.config, pair) for plan in self._plans for pair in plan.to_evaluate]
        work += interleave(self._plans)
        for config, pair in work:
            self._open_work[work_key(config, pair)] = Work(_config_for_jobs(config), pair)
            if config.force and not config.evaluate_only:
                config.paths.archive(pair, config.setting)

    def _handle_events(self) -> None:
        # A copy: handling an event may remove its job.
        for job, event in self._cluster.events(list(self._active)):
            if job in self._active:
                self._handle_event(job, event)

    def _cancel(self) -> None:
        if self._carries_logs:
            # Results so far arrive only with events.
            with suppress(CooperBenchError):
                self._handle_events()
        self._cluster.cancel(self._active)

    def _forget_jobs(self) -> None:
        self._record.unlink(missing_ok=True)
        try:
            self._cluster.close(keep_files=self._has_failed_pair)
        except CooperBenchError as error:
            # All results have been collected.
            self._display.note(str(error))
        if not self._carries_logs and not self._has_failed_pair:
            for plan in self._plans:
                remove_tree(plan.config.paths.jobs)

    def _find_earlier_jobs(self) -> None:
        """Adopt the jobs of a driver that was killed, until the cluster reports their end."""
        for job, keys in read_jobs(self._record).items():
            if any(key in self._open_work for key in keys):
                self._active[job] = keys
                # They do not count as attempts of this call: the cause may have been removed.
                self._attempts.subtract(keys)
        if self._active:
            self._is_replaying = True
            self._display.note(f"Found {plural(len(self._active), 'job')} of an earlier call")

    def _submit_jobs(self) -> None:
        """Submit as many jobs as the cluster accepts; later, as many as have ended."""
        if self._is_held:
            self._drop_unsubmitted()
        limit = self._config.max_jobs if self._active else self._cluster.max_jobs
        free = limit - len(self._active)
        if free <= 0 or not self._to_submit:
            return
        batch = secrets.token_hex(4)
        jobs: dict[str, list[str]] = {}
        while self._to_submit and len(jobs) < free:
            size = min(self._config.pairs_per_job or 1, len(self._to_submit))
            jobs[f"{batch}.{len(jobs)}"] = [self._to_submit.popleft() for _ in range(size)]
        self._active |= jobs
        # Before the submission: from now on the file names all jobs that may exist after a crash.
        records.write(self._record, JobsRecord(engine=self._cluster.name, jobs=self._active))
        orders = [self._make_order(job, keys) for job, keys in jobs.items()]
        try:
            self._cluster.submit(batch, orders)
        except UserError:
            for job in jobs:
                del self._active[job]
            raise

    def _drop_unsubmitted(self) -> None:
        """Count the pairs that the budget does not allow anymore."""
        while self._to_submit:
            del self._open_work[self._to_submit.popleft()]
            self._budget.try_start()

    def _make_order(self, job: str, keys: Sequence[str]) -> JobOrder:
        """Return the order of a job, with the files that nodes do not see."""
        work = tuple(self._open_work[key] for key in keys)
        folders: dict[PackedFolder, None] = {}
        references: list[ReferenceRecord] = []
        for config, pair in work:
            if self._carries_logs:
                folders.update(dict.fromkeys(self._pack_result(config, pair)))
                for feature in pair.features:
                    references += self._known_references(feature)
            for path in (pair.task.path, *config.user_files):
                if not self._cluster.sees(path):
                    folders[self._pack_path(path)] = None
        return JobOrder(job, work, tuple(folders), self._carries_logs, tuple(references))

    def _pack_result(self, config: RunConfig, pair: Pair) -> list[PackedFolder]:
        """Return the result and the patches of a pair that is to be evaluated."""
        paths = config.paths.pair(pair, config.setting)
        if not paths.result.exists():
            return []
        names = [paths.result.name]
        names += [
            paths.agent(slot.agent_id).patch.name for slot in patch_slots(pair, config.setting)
        ]
        return [PackedFolder(paths.folder, pack_folder(paths.folder, names))]

    def _handle_event(self, job: str, event: Event) -> None:
        match event["kind"]:
            case "done" | "lost":
                self._end_job(job, event)
            case "note":
                # Each job sends the notes about its tasks.
                if event["text"] not in self._shown_notes:
                    self._shown_notes.add(event["text"])
                    self._display.note(event["text"])
            case "spent":
                # The costs of an earlier driver's jobs were on disk when this driver started.
                if not self._is_replaying:
                    self._budget.spend(Usage(cost=event["cost"]))
                    self._hold_if_spent()
            case _ if event["pair"] in self._open_work:
                self._handle_pair_event(job, event)

    def _handle_pair_event(self, job: str, event: Event) -> None:
        record: JsonObject = event.get("record", {})
        if event["kind"] == "evaluated" and event["files"]:
            record = self._store_evaluation(event)
        is_last_attempt = self._attempts[event["pair"]] + 1 >= self._cluster.attempts
        is_infrastructure = record.get("status") == "error" and record.get("infrastructure")
        if is_infrastructure and not is_last_attempt:
            # Perhaps the node is at fault, for example a full disk: another job tries again.
            self._reasons[job] = record["error"]
            return
        config, pair = self._open_work[event["pair"]]
        match event["kind"]:
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
                self._end_pair(event, record)
            case "evaluated":
                self._display.evaluated(pair, records.from_object(record, Evaluation))
                self._settle(event["pair"])

    def _end_pair(self, event: Event, record: JsonObject) -> None:
        config, pair = self._open_work[event["pair"]]
        if event["files"]:
            config.paths.archive(pair, config.setting)
            folder = config.paths.pair(pair, config.setting).folder
            unpack_folder(base64.b64decode(event["files"]), folder)
            count_earlier_attempts(config.paths, pair, config.setting)
        result = records.from_object(record, PairResult)
        self._display.pair_ended(pair, result)
        if not config.auto_eval or not result.is_completed:
            self._settle(event["pair"])

    def _store_evaluation(self, event: Event) -> JsonObject:
        """Write the evaluation that a job sent, if it is about the files that are here now."""
        config, pair = self._open_work[event["pair"]]
        paths = config.paths.pair(pair, config.setting)
        record: JsonObject = event["record"]
        patches = read_patches(paths, pair, config.setting)
        image_digest = str(record.get("image_digest", ""))
        options = EvaluationOptions(config.test_timeout_seconds, config.eval_network, config.canary)
        key = evaluation_key(pair, patches, image_digest, options)
        try:
            if record["status"] != "error" and record["key"] != key:
                raise InfraError(
                    f"the evaluation of {pair.label} is about other patches or tests than these"
                )
            with TemporaryDirectory(prefix=owned_prefix("verdict")) as received:
                unpack_folder(base64.b64decode(event["files"]), Path(received))
                remove_tree(paths.folder / "tests")
                paths.merged_patch.unlink(missing_ok=True)
                _copy_evaluation_files(Path(received), paths.folder)
            ReferenceStore().add(event["references"])
        except CooperBenchError as error:
            failure = write_failure(config.paths, pair, config.setting, error)
            return records.to_object(failure)
        # Last: once eval.json exists, all files that it refers to exist too.
        write_json(paths.evaluation, record)
        return record

    def _settle(self, key: str) -> None:
        """Remove a pair that has an outcome."""
        self._has_outcome = True
        del self._open_work[key]

    def _hold_if_spent(self) -> None:
        if self._budget.is_spent and not self._is_held:
            self._is_held = True
            self._display.note("The budget (--max-cost) is spent: no new pair starts")
            self._cluster.hold(self._active)

    def _end_job(self, job: str, event: Event) -> None:
        if event.get("refused"):
            if event["stops"] or not self._has_outcome:
                raise RunStopped(event["error"])
            self._display.note(event["error"])
        error = event.get("error") or "it ended without running the pair"
        reason = self._reasons.pop(job, error)
        for key in self._active.pop(job):
            if key in self._open_work:
                self._resubmit_or_fail(job, key, reason)

    def _resubmit_or_fail(self, job: str, key: str, reason: str) -> None:
        """Decide about a pair whose job has ended without reporting an outcome."""
        config, pair = self._open_work[key]
        plan = plan_pairs(config, [pair])
        if not self._is_held:
            self._attempts[key] += 1
        if not plan.to_run and not plan.to_evaluate:
            # The job was killed after it had written the outcome and before it could report it.
            self._settle(key)
        elif self._attempts[key] < self._cluster.attempts:
            if not self._is_held:
                self._display.note(
                    f"{pair.label}: job {job} ended: {reason}; it goes to another job"
                )
            self._to_submit.append(key)
        else:
            jobs = plural(self._cluster.attempts, "job")
            self._fail(config, pair, InfraError(f"{jobs} ended without an outcome: {reason}"))
            self._settle(key)

    def _fail(self, config: RunConfig, pair: Pair, error: InfraError) -> None:
        """Record that a pair or its evaluation has ended in an error."""
        self._has_failed_pair = True
        if config.evaluate_only or is_finished(config.paths.pair(pair, config.setting)):
            failure = write_failure(config.paths, pair, config.setting, error)
            self._display.evaluated(pair, failure)
        else:
            self._display.pair_ended(pair, write_result_error(config, pair, error))


def _config_for_jobs(config: RunConfig) -> RunConfig:
    """Return the configuration of a job: one pair at a time and a share of the evaluations.

    Without `force`: a job that is started again must not repeat what it has finished.
    """
    return replace(
        config,
        force=config.force and config.evaluate_only,
        concurrency=1,
        eval_concurrency=ceil(config.eval_concurrency / config.max_jobs),
        agent=",".join(_absolute_program(agent) for agent in config.agents),
    )


def _absolute_program(agent: str) -> str:
    """Return an agent that is a program (`./my_agent`) with its absolute path."""
    return str(Path(agent).expanduser().absolute()) if "/" in agent else agent


def _copy_evaluation_files(source: Path, target: Path) -> None:
    """Copy test outputs and the merged patch; nothing else that a job may have sent."""
    for path in (*source.glob("tests/*.txt"), *source.glob("merged.patch")):
        write_bytes(target / path.relative_to(source), path.read_bytes())


def _known_references(feature: Feature) -> tuple[ReferenceRecord, ...]:
    return tuple(ReferenceStore().about(feature))


def _pack_path(path: Path) -> PackedFolder:
    """Pack a folder, or a single file together with the folder that it is in."""
    if path.is_dir():
        return PackedFolder(path.absolute(), pack_folder(path.resolve()))
    return PackedFolder(path.parent.absolute(), pack_folder(path.parent, (path.name,)))
