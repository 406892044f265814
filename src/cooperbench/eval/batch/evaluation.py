"""All evaluations of an experiment as one Batch job: sent, followed, taken in as they arrive, cleaned up.

A harness that is killed leaves its job running, and the same command finds it again. One that is interrupted (Ctrl-C)
takes in what is there and ends the job. Results are written by the same code as everywhere else, after
`entry.Result` has checked that they are those of what lies here.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.batch import BatchJobs, Folder, open_bucket
from cooperbench.errors import CooperBenchError, InfraError, Interrupted, UserError
from cooperbench.eval.batch.entry import BadResult, Entry, Result, make_bundle, make_entry, pack_task
from cooperbench.eval.batch.job import (
    forget_record,
    job_spec,
    load_record,
    new_record,
    read_batch_settings,
    save_record,
)
from cooperbench.eval.batch.store import REFERENCES, sha256
from cooperbench.eval.evaluator import write_failure
from cooperbench.eval.reference import ReferenceStore, exported
from cooperbench.retry import with_retries
from cooperbench.text import duration_text, plural

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from cooperbench.backends.gcp.batch import JobView
    from cooperbench.backends.gcp.settings import GcpSettings
    from cooperbench.eval.batch.job import JobRecord
    from cooperbench.eval.batch.remote import Listener, Order
    from cooperbench.models import Task
    from cooperbench.sandbox.contract import ResourceUse

JOBS = 3
"""A job that ends without having run all of its tasks is followed by another one for these."""
_FAILURES_IN_A_ROW = 8
_TELL_SECONDS = 60.0


def evaluate_on_batch(
    settings: GcpSettings,
    order: Order,
    listener: Listener,
    stop: threading.Event,
    add_use: Callable[[ResourceUse], None],
) -> None:
    """Until each pair of the order has an eval.json. Nothing is connected to where there is nothing to do.

    `add_use` is called for each job that has come to its end here, also for one that an earlier start has made.
    """
    if order.work or load_record(order.paths) is not None:
        _BatchEvaluation(settings, order, listener, stop, add_use).run()


class _BatchEvaluation:
    def __init__(
        self,
        settings: GcpSettings,
        order: Order,
        listener: Listener,
        stop: threading.Event,
        add_use: Callable[[ResourceUse], None],
    ) -> None:
        self._settings = settings
        self._order = order
        self._listener = listener
        self._stop = stop
        self._add_use = add_use
        self._batch = read_batch_settings()
        self._jobs = BatchJobs()
        self._bucket = open_bucket(settings)
        self._archives: dict[Task, bytes] = {}
        self._waiting: dict[str, Entry] = {}
        self._errors: dict[str, CooperBenchError] = {}
        """Of tasks that came to no verdict: it stands if their last attempt does not come to one either."""
        self._seen: dict[str, str] = {}
        self._counted: set[str] = set()
        """Jobs whose use was told: an interrupted clean-up is done again."""
        self._told_state, self._told_at = "", 0.0

    def run(self) -> None:
        self._waiting = {entry.entry_id: entry for entry in self._entries()}
        record = self._earlier()
        last: JobView | None = None
        for _ in range(JOBS):
            before = len(self._waiting)
            if not before:
                return
            found, record = record, None
            last = self._carry_through(found)
            self._write_errors()
            if found is None and last is not None and len(self._waiting) == before:
                # It had all of them and judged none: another one would fare no better.
                break
            if self._waiting:
                self._listener.note(
                    f"{plural(len(self._waiting), 'pair')} left by the job: they go into another"
                )
        words = (last and last.last_event) or "no task of it was run"
        for entry_id in self._waiting:
            self._errors[entry_id] = InfraError(f"the Batch job ended without judging it: {words}")
        self._write_errors()

    def _entries(self) -> list[Entry]:
        """Those of one image side by side: a machine that has it can go on with it."""
        order = self._order
        for pair, _ in order.work:
            if pair.task not in self._archives:
                self._archives[pair.task] = pack_task(pair.task)
        digests = {task: sha256(archive) for task, archive in self._archives.items()}
        work = sorted(order.work, key=lambda item: (item[0].task.label, item[1], item[0].feature_ids))
        return [
            make_entry(
                order.paths,
                pair,
                setting,
                task_digest=digests[pair.task],
                timeout_seconds=order.test_timeout_seconds,
                eval_network=order.eval_network,
                backend=self._batch.backend,
                environment=self._batch.environment,
            )
            for pair, setting in work
        ]

    def _earlier(self) -> JobRecord | None:
        """The job that a killed harness has left, if it is about anything that is to be judged now."""
        record = load_record(self._order.paths)
        if record is None:
            return None
        if any(entry_id in self._waiting for entry_id in record.entry_ids):
            self._listener.note(f"Found the Batch job {record.job} of an earlier start")
            return record
        self._listener.note(
            f"The Batch job {record.job} of an earlier start is about nothing of this: removed"
        )
        self._clean_up(record)
        return None

    def _carry_through(self, record: JobRecord | None) -> JobView | None:
        """One job to its end; how it ended, None where it vanished."""
        made = record is None
        if record is None:
            entries = list(self._waiting.values())
            record = new_record(self._order.paths.run_name, self._settings, entries)
        try:
            if made:
                self._submit(record)
            last = self._follow(record)
            failures = self._jobs.failures(record.name) if self._waiting and last is not None else {}
        except (KeyboardInterrupt, Interrupted):
            self._end(record)
            raise
        for index, words in failures.items():
            see = f"gcloud logging read 'labels.job_uid=\"{last.uid}\"'" if last else ""
            error = InfraError(f"the Batch task failed: {words} See it with: {see}")
            self._errors.setdefault(record.entry_ids[index], error)
        try:
            self._clean_up(record)
        except InfraError as error:
            # The results are here; what is left over there is removed at the next start, or by the bucket's rule.
            self._listener.note(f"{error}; cooperbench clean --backend gcp removes what is left")
        return last

    def _submit(self, record: JobRecord) -> None:
        """The record first: whatever happens from now on, it says where to look."""
        save_record(self._order.paths, record)
        bundle = make_bundle(with_engine_client=self._batch.backend == "docker")
        objects = {f"entries/{entry.entry_id}.json": entry.description for entry in self._waiting.values()}
        for task in {entry.pair.task for entry in self._waiting.values()}:
            objects[f"tasks/{sha256(self._archives[task])}.tar.z"] = self._archives[task]
        objects[f"bundle/{sha256(bundle)}.zip"] = bundle
        objects[REFERENCES] = json.dumps(exported(ReferenceStore().known(self._archives))).encode()
        try:
            with_retries(lambda _: self._folder(record).put(objects), self._stop)
            job = job_spec(self._order, record, sha256(bundle), self._settings, self._batch)
            with_retries(lambda _: self._jobs.create(record.name, job), self._stop)
        except UserError:
            # Refused, so there is no job.
            with suppress(CooperBenchError):
                self._folder(record).remove()
            forget_record(self._order.paths)
            raise
        at_once = job.task_groups[0].parallelism
        kind = f"{self._settings.machine_type}{' spot' if self._settings.spot else ''}"
        self._listener.note(
            f"Batch job {record.job}: {plural(len(record.tasks), 'task')}, {at_once} at once, on {kind} machines"
        )

    def _follow(self, record: JobRecord) -> JobView | None:
        """Take results in until all are there or the job has ended."""
        folder, failed = self._folder(record), 0
        while True:
            try:
                view = self._jobs.look(record.name)
                # In this order: what had ended when we looked has left its result.
                self._take_in(folder)
            except InfraError as error:
                failed += 1
                if failed == _FAILURES_IN_A_ROW:
                    words = f"{error}; the Batch job {record.job} goes on, the same command finds it again"
                    raise InfraError(words) from error
                self._listener.note(f"{error}; trying again")
            except UserError as error:
                raise UserError(
                    f"{error}; then the same command finds the Batch job {record.job} again"
                ) from error
            else:
                failed = 0
                if view is None or view.ended or not self._waiting:
                    return view
                self._tell(record, view)
            if self._stop.wait(self._batch.poll_seconds * 2**failed):
                raise Interrupted("stopped")

    def _take_in(self, folder: Folder) -> None:
        versions = folder.versions("results")
        new = [
            entry_id
            for entry_id in self._waiting
            if entry_id in versions and self._seen.get(entry_id) != versions[entry_id]
        ]
        for entry_id, packed in folder.get("results", new).items():
            self._seen[entry_id] = versions[entry_id]
            self._take_one(self._waiting[entry_id], packed)

    def _take_one(self, entry: Entry, packed: bytes) -> None:
        try:
            result = Result(entry, packed)
            if not result.is_verdict:
                self._errors[entry.entry_id] = result.error
                return
            evaluation = result.take_in(
                self._order.paths, self._order.test_timeout_seconds, self._order.eval_network
            )
        except BadResult as error:
            self._errors[entry.entry_id] = error
            return
        del self._waiting[entry.entry_id]
        self._listener.evaluated(entry.pair, evaluation)

    def _write_errors(self) -> None:
        for entry_id in [entry_id for entry_id in self._waiting if entry_id in self._errors]:
            entry = self._waiting.pop(entry_id)
            record = write_failure(self._order.paths, entry.pair, entry.setting, self._errors[entry_id])
            self._listener.evaluated(entry.pair, record)

    def _tell(self, record: JobRecord, view: JobView) -> None:
        now = time.monotonic()
        if view.state == self._told_state and now - self._told_at < _TELL_SECONDS:
            return
        self._told_state, self._told_at = view.state, now
        counts = ", ".join(
            f"{number} {state.lower()}" for state, number in sorted(view.counts.items()) if number
        )
        self._listener.note(f"Batch job {record.job}: {view.state.lower()}{f' ({counts})' if counts else ''}")

    def _end(self, record: JobRecord) -> None:
        """Interrupted: what is there is taken in, nothing goes on, and a second Ctrl-C changes nothing about that."""
        try:
            with suppress(CooperBenchError):
                self._take_in(self._folder(record))
            self._clean_up(record)
        except KeyboardInterrupt:
            self._clean_up(record)
            raise

    def _clean_up(self, record: JobRecord) -> None:
        used = self._use_of(record)
        self._jobs.delete(record.name)
        if used is not None and record.job not in self._counted:
            self._counted.add(record.job)
            # Not before: a job that is still there is found, and counted, another time.
            self._add_use(used)
            machines, time_text = plural(used.count, "machine"), duration_text(used.seconds)
            self._listener.note(
                f"Batch job {record.job}: {machines} for {time_text} in all, without the time to boot"
            )
        self._folder(record).remove()
        forget_record(self._order.paths)

    def _use_of(self, record: JobRecord) -> ResourceUse | None:
        """A figure that cannot be told is no reason to leave what costs."""
        try:
            return self._jobs.resource_use(record.name)
        except CooperBenchError as error:
            self._listener.note(f"what the Batch job {record.job} has used is not known: {error}")
            return None

    def _folder(self, record: JobRecord) -> Folder:
        return Folder(self._bucket.client.bucket(record.bucket), record.folder)
