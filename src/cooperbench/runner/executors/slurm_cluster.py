"""Slurm: one array of jobs per batch, submitted with submitit; states come from `squeue`.

The folder of the jobs (orders, events, output) must be on a file system that the nodes share. By
default it is next to the results; `--slurm folder=DIR` names another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from cooperbench.errors import InfraError, UserError
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.executors.cluster import batch_ids, parse_options
from cooperbench.runner.executors.job import Event, JobOrder, run_job
from cooperbench.secrets import redact
from cooperbench.temporary import remove_tree

_STATE_SECONDS = 3.0
"""Seconds between two calls of `squeue`, because Slurm has other users."""
_CANCEL_SECONDS = 60.0
_EVALUATION_SECONDS = 1800.0
"""Time for the evaluation of a pair, in addition to the time limit of its agents."""
_UNLIMITED_SECONDS = 24 * 3600.0
_RESERVED_OPTIONS = ("folder", "array", "job-name", "output", "error", "open-mode", "signal")
"""Options of sbatch that CooperBench sets itself, and `folder`, which sbatch does not have."""


class SlurmCluster:
    """The Slurm cluster of this machine."""

    name = "slurm"
    attempts = ATTEMPTS
    poll_seconds = 0.5

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._sbatch_options = _sbatch_options(config)
        self._folder = _job_folder(config)
        self._run_name = config.run_name
        self.max_jobs = config.max_jobs
        self._offsets: dict[Path, int] = {}
        """How much of each file of events has been read."""
        self._next_state_check = 0.0
        self._missing_jobs: set[str] = set()
        """Jobs that `squeue` did not list at the last check."""
        self._array_ids: dict[str, str] = {}
        """Slurm's number of each batch."""

    def check(self, paths: Sequence[Path]) -> None:
        """Check Slurm's commands and options. Jobs report problems of nodes."""
        del paths
        if shutil.which("sbatch") is None:
            raise UserError(
                "--executor slurm needs Slurm's commands, and there is no sbatch on this machine"
            )
        if find_spec("submitit") is None:
            raise UserError("--executor slurm needs submitit: pip install 'cooperbench[slurm]'")
        argv = ["sbatch", "--test-only"]
        for name, value in self._sbatch_options.items():
            argv.append(f"--{name}={value}" if value else f"--{name}")
        trial = _run_command(*argv, "--wrap=true")
        if trial.returncode != 0:
            lines = [line for line in trial.stderr.split("\n") if line]
            reasons = [line.partition("error: ")[2] or line for line in lines]
            raise UserError(f"Slurm rejects the job: {redact(' '.join(reasons)).strip()[:300]}")
        # A longer queue is submitted in parts.
        self.max_jobs = max(self._config.max_jobs, _max_array_size() - 1)

    def sees(self, path: Path) -> bool:
        """Return whether a path is on the file system of the jobs' folder."""
        return path.exists() and path.stat().st_dev == self._events_folder().stat().st_dev

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        """Submit the jobs as one array."""
        import submitit

        executor = submitit.SlurmExecutor(folder=self._folder / "slurm")
        cpus = self._sbatch_options.get("cpus-per-task")
        executor.update_parameters(
            job_name=_job_name(self._run_name, batch),
            # Shorter than any real limit, so that submitit counts each signal of Slurm as a
            # timeout, after which it queues the job again at most three times.
            time=1,
            array_parallelism=self._config.max_jobs,
            additional_parameters={
                name: value or True for name, value in self._sbatch_options.items()
            },
            # Since Slurm 22.05 a step does not inherit this option from its job.
            srun_args=[f"--cpus-per-task={cpus}"] if cpus else None,
        )
        (self._folder / "hold").unlink(missing_ok=True)
        try:
            jobs = executor.map_array(_SlurmJob(self._folder), orders)
        except RuntimeError as error:  # the base of submitit's errors
            raise UserError(f"sbatch failed: {redact(str(error)).strip()[-300:]}") from error
        self._array_ids[batch] = str(jobs[0].job_id).partition("_")[0]

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """Yield new lines of the files of events; check the states of jobs every few seconds."""
        for entry in os.scandir(self._events_folder()):
            yield from self._read_events(Path(entry.path), entry.stat().st_size)
        if jobs and time.monotonic() >= self._next_state_check:
            self._next_state_check = time.monotonic() + _STATE_SECONDS
            yield from self._lost_jobs(jobs)

    def _read_events(self, path: Path, size: int) -> Iterator[tuple[str, Event]]:
        offset = self._offsets.get(path, 0)
        if size == offset:
            return
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        # The last line may be incomplete.
        complete = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(complete)
        for line in complete.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a job was killed while it wrote the line
            yield path.stem, event
            if event["kind"] == "done":
                path.unlink(missing_ok=True)

    def _lost_jobs(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        """Yield jobs that Slurm does not list anymore."""
        states = job_states(self._run_name, jobs)
        if states is None:
            return
        missing = {job for job in jobs if job not in states}
        # Only after two checks in a row, so that the job's last events have been read.
        lost = missing & self._missing_jobs
        self._missing_jobs = missing
        for job in lost:
            yield job, {"kind": "lost", "error": self._end_reason(job)}

    def hold(self, jobs: Collection[str]) -> None:
        """Cancel waiting jobs, and leave a file that running jobs look for."""
        (self._events_folder().parent / "hold").touch()
        for batch in batch_ids(jobs):
            name = _job_name(self._run_name, batch)
            _run_command("scancel", "--me", "--state=PENDING", f"--name={name}")

    def cancel(self, jobs: Collection[str]) -> None:
        """Cancel jobs and wait until Slurm does not list them anymore."""
        for batch in batch_ids(jobs):
            _run_command("scancel", "--me", f"--name={_job_name(self._run_name, batch)}")
        deadline = time.monotonic() + _CANCEL_SECONDS
        while jobs:
            states = job_states(self._run_name, jobs)
            if states == {}:
                return
            if time.monotonic() > deadline:
                problem = "Slurm does not answer"
                if states is not None:
                    problem = f"{len(states)} of them are left"
                raise InfraError(
                    f"the jobs in Slurm could not be ended ({problem}); see squeue --me"
                )
            time.sleep(0.3)

    def close(self, *, keep_files: bool) -> None:
        """Remove the folder of the jobs, unless somebody has to look at it."""
        if not keep_files:
            remove_tree(self._folder)

    def _events_folder(self) -> Path:
        folder = self._folder / "events"
        if not folder.exists():
            # Orders may contain the URL of a Redis server with its password.
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir()
        return folder

    def _end_reason(self, job: str) -> str:
        """Return why a job ended; Slurm knows it for some minutes, even without accounting."""
        batch, _, index = job.partition(".")
        job_id = f"{self._array_ids.get(batch)}_{index}"
        output = _run_command("scontrol", "-o", "show", "job", job_id).stdout
        fields = dict(word.partition("=")[::2] for word in output.split())
        if "JobState" not in fields:
            return "the reason is not known: Slurm has forgotten the job"
        return (
            f"{fields['JobState']} on {fields.get('NodeList')}, "
            f"exit code {fields.get('ExitCode')}; "
            f"see {self._folder / 'slurm' / job_id}_0_log.err"
        )


def _sbatch_options(config: RunConfig) -> dict[str, str]:
    """Return the options for sbatch: the user's, and defaults for the others."""
    options = parse_options(config.slurm, "--slurm")
    options.pop("folder", None)
    for name in options:
        if name in _RESERVED_OPTIONS:
            raise UserError(f"--slurm {name}=… is set by CooperBench itself")
    agent_seconds = 0.0
    if not config.evaluate_only:
        agent_seconds = config.time_limit_seconds or _UNLIMITED_SECONDS
    seconds = (agent_seconds + _EVALUATION_SECONDS) * (config.pairs_per_job or 1)
    return {"time": str(round(seconds / 60)), "requeue": ""} | options


def _job_folder(config: RunConfig) -> Path:
    folder = parse_options(config.slurm, "--slurm").get("folder")
    if folder:
        return Path(folder).absolute() / config.run_name
    return config.paths.jobs.absolute()


def _max_array_size() -> int:
    output = _run_command("scontrol", "show", "config").stdout
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", output)
    return int(match[1]) if match else 1001


def job_states(run_name: str, jobs: Iterable[str]) -> dict[str, str] | None:
    """Return the states of the jobs that Slurm still has; None if it does not answer."""
    batches = {_job_name(run_name, batch): batch for batch in batch_ids(jobs)}
    names = ",".join(batches)
    result = _run_command("squeue", "-h", "-r", "--me", f"--name={names}", "-o", "%j %K %T")
    if result.returncode != 0:
        return None
    states = {}
    for line in result.stdout.splitlines():
        name, index, state = line.split()
        if index == "N/A":
            index = "0"  # a batch of one job is not an array
        states[f"{batches[name]}.{index}"] = state
    return states


def _job_name(run_name: str, batch: str) -> str:
    return f"cooperbench-{run_name}-{batch}"


class _SlurmJob:
    """The function that submitit pickles and calls on the node.

    `checkpoint` makes submitit queue the job again before its time is up.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, order: JobOrder) -> None:
        # submitit ignores SIGTERM; scancel and preemption must work like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        run_job(order, _FileLink(self._folder, order.job))
        # The driver knows everything by now and may be removing the folder that submitit would
        # write to.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def checkpoint(self, order: JobOrder) -> object:
        """Return how to continue the job."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, order)


class _FileLink:
    """A link that appends events to a file, which the driver reads."""

    def __init__(self, folder: Path, job: str) -> None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.owner = f"Slurm job {os.environ.get('SLURM_JOB_ID', '?')} on {node}"
        self._path = folder / "events" / f"{job}.jsonl"
        self._hold = folder / "hold"

    def send(self, event: Event) -> None:
        """Append an event, in a single write because several threads send events."""
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(event).encode() + b"\n")

    def may_start(self) -> bool:
        """Return whether the driver has not left the file that holds new pairs."""
        return not self._hold.exists()


def _run_command(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm; one that cannot run counts as failed."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))
