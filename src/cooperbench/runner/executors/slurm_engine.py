"""Jobs of Slurm, by submitit: one array for all, and states from `squeue`, which needs no accounting.

The folder of the jobs (orders, events, what they print) has to be on a file system that the nodes share. It is beside
the results; where those are on a disk of this machine only, `--slurm folder=DIR` names another one.
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
from typing import Any

from cooperbench.errors import InfraError, UserError
from cooperbench.retry import ATTEMPTS
from cooperbench.runner.config import RunConfig
from cooperbench.runner.executors.driver import batches_of, parse_options
from cooperbench.runner.executors.job import Event, JobOrder, work_on
from cooperbench.secrets import redact
from cooperbench.temporary import remove_tree

_STATE_SECONDS = 3.0
"""Between two questions to Slurm; it has other users."""
_CANCEL_SECONDS = 60.0
_EVALUATION_SECONDS = 1800.0
"""For judging a pair, beside what its agents may take."""
_MAX_SECONDS = 24 * 3600.0
_OURS = ("folder", "array", "job-name", "output", "error", "open-mode", "signal")
"""Of sbatch's options, those that are not the user's; and one that is not sbatch's."""


class SlurmEngine:
    name = "slurm"
    attempts = ATTEMPTS
    poll_seconds = 0.5

    def __init__(self, config: RunConfig) -> None:
        given = parse_options(config.slurm, "--slurm")
        folder = given.pop("folder", None)
        if wrong := [name for name in given if name in _OURS]:
            raise UserError(f"--slurm {wrong[0]}=… is set by CooperBench itself")
        paths = config.paths
        self._folder = Path(folder).absolute() / paths.run_name if folder else paths.jobs.absolute()
        agents = 0.0 if config.evaluate_only else config.time_limit_seconds or _MAX_SECONDS
        minutes = round((agents + _EVALUATION_SECONDS) * (config.pairs_per_job or 1) / 60)
        self._given = {"time": str(minutes), "requeue": ""} | given
        self._run_name = paths.run_name
        self._workers = self.max_jobs = config.max_jobs
        self._offsets: dict[Path, int] = {}
        """How much of each file of events is read."""
        self._asked_at = 0.0
        self._gone: set[str] = set()
        self._arrays: dict[str, str] = {}
        """Slurm's number of a batch."""

    def check(self, seen: Sequence[Path]) -> None:  # noqa: ARG002
        # What is on the nodes, and which backend works there, is known when the first job tells.
        if shutil.which("sbatch") is None:
            raise UserError(
                "--executor slurm needs Slurm's commands, and there is no sbatch on this machine"
            )
        if find_spec("submitit") is None:
            raise UserError("--executor slurm needs submitit: pip install 'cooperbench[slurm]'")
        words = [
            f"--{name}={value}" if value else f"--{name}" for name, value in self._given.items()
        ]
        trial = _slurm("sbatch", "--test-only", *words, "--wrap=true")
        if trial.returncode != 0:
            said = " ".join(
                line.partition("error: ")[2] or line for line in trial.stderr.split("\n") if line
            )
            raise UserError(f"Slurm refuses the job: {redact(said).strip()[:300]}")
        found = re.search(r"MaxArraySize\s*=\s*(\d+)", _slurm("scontrol", "show", "config").stdout)
        # Only a part of the queue, where there are more: the driver fills up.
        self.max_jobs = max(self._workers, int(found[1]) - 1 if found else 1000)

    def sees(self, path: Path) -> bool:
        return path.exists() and path.stat().st_dev == self._events.stat().st_dev

    def submit(self, batch: str, orders: Sequence[JobOrder]) -> None:
        import submitit

        executor = submitit.SlurmExecutor(folder=self._folder / "slurm")
        cpus = self._given.get("cpus-per-task")
        executor.update_parameters(
            job_name=_job_name(self._run_name, batch),
            # Shorter than any: it counts each time that Slurm's signal comes, up to three.
            time=1,
            array_parallelism=self._workers,
            additional_parameters={name: value or True for name, value in self._given.items()},
            # Since 22.05 a step does not take it over from its job.
            srun_args=[f"--cpus-per-task={cpus}"] if cpus else None,
        )
        (self._folder / "hold").unlink(missing_ok=True)
        try:
            jobs = executor.map_array(_SlurmJob(self._folder), orders)
        except submitit.core.utils.FailedJobError as error:
            raise UserError(f"sbatch failed: {redact(str(error)).strip()[-300:]}") from error
        self._arrays[batch] = str(jobs[0].job_id).partition("_")[0]

    def events(self, jobs: Collection[str]) -> Iterator[tuple[str, Event]]:
        for entry in os.scandir(self._events):
            path = Path(entry.path)
            offset = self._offsets.get(path, 0)
            if entry.stat().st_size == offset:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            # The last line may be on its way still.
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # half of one, by a job that was killed while it wrote
                yield path.stem, event
                if event["kind"] == "done":
                    path.unlink(missing_ok=True)
        if not jobs or time.monotonic() < self._asked_at + _STATE_SECONDS:
            return
        self._asked_at = time.monotonic()
        states = job_states(self._run_name, jobs)
        if states is not None:
            # Twice, so that what it told last has been read.
            lost, self._gone = self._gone, {job for job in jobs if job not in states}
            for job in lost & self._gone:
                yield job, {"kind": "lost", "error": self._reason(job)}

    def hold(self, jobs: Collection[str]) -> None:
        (self._events.parent / "hold").touch()
        for batch in batches_of(jobs):
            _slurm(
                "scancel", "--me", "--state=PENDING", f"--name={_job_name(self._run_name, batch)}"
            )

    def cancel(self, jobs: Collection[str]) -> None:
        for batch in batches_of(jobs):
            _slurm("scancel", "--me", f"--name={_job_name(self._run_name, batch)}")
        until = time.monotonic() + _CANCEL_SECONDS
        while jobs and (states := job_states(self._run_name, jobs)) != {}:
            if time.monotonic() > until:
                left = (
                    "Slurm does not answer" if states is None else f"{len(states)} of them are left"
                )
                raise InfraError(f"the jobs in Slurm could not be ended ({left}); see squeue --me")
            time.sleep(0.3)

    def close(self, *, keep_files: bool) -> None:
        if not keep_files:
            remove_tree(self._folder)

    @property
    def _events(self) -> Path:
        folder = self._folder / "events"
        if not folder.exists():
            # Orders may hold the address of a Redis with its password.
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir()
        return folder

    def _reason(self, job: str) -> str:
        """What Slurm knows for some minutes, without accounting."""
        batch, _, index = job.partition(".")
        number = f"{self._arrays.get(batch)}_{index}"
        shown = _slurm("scontrol", "-o", "show", "job", number).stdout
        found = dict(word.partition("=")[::2] for word in shown.split())
        if "JobState" not in found:
            return "how is not known: Slurm has forgotten it"
        return (
            f"{found['JobState']} on {found.get('NodeList')}, exit code {found.get('ExitCode')};"
            f" see {self._folder / 'slurm' / number}_0_log.err"
        )


def job_states(run_name: str, jobs: Iterable[str]) -> dict[str, str] | None:
    """What Slurm says of those that it still has; None where it does not answer."""
    names = {_job_name(run_name, batch): batch for batch in batches_of(jobs)}
    done = _slurm("squeue", "-h", "-r", "--me", f"--name={','.join(names)}", "-o", "%j %K %T")
    if done.returncode != 0:
        return None
    lines = (line.split() for line in done.stdout.splitlines())
    # A batch of one job is no array.
    return {
        f"{names[name]}.{0 if index == 'N/A' else index}": state for name, index, state in lines
    }


def _job_name(run_name: str, batch: str) -> str:
    return f"cooperbench-{run_name}-{batch}"


class _SlurmJob:
    """What submitit pickles and calls on the node; with `checkpoint`, it is queued again before its time is up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, order: JobOrder) -> None:
        # submitit ignores SIGTERM; scancel and preemption are our Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        work_on(order, _FileLink(self._folder, order.job))
        # The driver knows everything, and may be removing the folder that submitit would write to.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def checkpoint(self, order: JobOrder) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self, order)


class _FileLink:
    """Events as lines of a file that the driver reads."""

    def __init__(self, folder: Path, job: str) -> None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.owner = f"Slurm job {os.environ.get('SLURM_JOB_ID', '?')} on {node}"
        self._path = folder / "events" / f"{job}.jsonl"
        self._hold = folder / "hold"

    def tell(self, event: Event) -> None:
        # One write each: several threads tell.
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(event).encode() + b"\n")

    def may_start(self) -> bool:
        return not self._hold.exists()


def _slurm(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))
