"""Every name under logs/, atomic writes, and the lock that keeps two runners of one experiment apart.

Disk is the truth: files appear whole or not at all, and result.json, which makes a pair done, is its last one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import SETTINGS, Pair, Setting
from cooperbench.secrets import redact

DEFAULT_LOGS_DIR = "logs"
LARGEST_FILE_BYTES = 256 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = ".writing-"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=-]{0,119}")


def utc_now() -> str:
    """The time as it stands in every file: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two times as files have them.

    A time without a zone is UTC. The result is never negative: clocks of two processes may differ
    a little.

    Returns:
        None if one of them is not a time.
    """
    try:
        times = [datetime.fromisoformat(str(text)) for text in (start, end)]
    except ValueError:
        return None
    first, last = (time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)
    return round(max(0.0, (last - first).total_seconds()), 3)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, content: Mapping[str, Any] | list[Any]) -> None:
    """Unpaired surrogates (from bytes that were no UTF-8) are written as JSON escapes, which every reader takes."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(content, indent=2).encode()
    write_bytes(path, data + b"\n")


def read_bytes(path: Path) -> bytes | None:
    """None where there is no such file that can be read."""
    try:
        return read_regular_file(path)
    except OSError:
        return None


def read_regular_file(path: Path) -> bytes:
    """OSError for anything else, and for what is too large: results may come from others, and a device never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > LARGEST_FILE_BYTES:
            raise OSError(
                errno.EFBIG, f"it is larger than {LARGEST_FILE_BYTES >> 20} MiB", str(path)
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read() or b""
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file or no whole JSON object in it."""
    return read_json_or_problem(path)[0]


def read_json_or_problem(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object in a file, or why there is none; two times None where there is no file."""
    try:
        content = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path.name} is not whole JSON"
    return (
        (content, None)
        if isinstance(content, dict)
        else (None, f"{path.name} holds no JSON object")
    )


def checked_run_name(name: str) -> str:
    """A run's name is a folder's name: refuse what could leave logs/ or hide in it."""
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no usable experiment name: up to 120 letters, digits and . _ + @ = -, "
            "beginning with a letter or digit"
        )
    return name


class AgentPaths:
    """The files of one agent in a pair's folder."""

    def __init__(self, folder: Path, agent_id: str) -> None:
        self.folder = folder
        self.agent_id = agent_id
        self.patch = folder / f"{agent_id}.patch"
        self.log = folder / f"{agent_id}.log"
        """For people."""
        self.trajectory = folder / agent_id / "trajectory.json"
        self.journal = folder / agent_id / "steps.jsonl"
        """Steps as they happen, a JSON line each; trajectory.json takes its place at the end."""
        self.exchanges = folder / agent_id / "exchanges.jsonl.gz"
        """What models were asked and answered, with `--record`."""
        self.patch_link = folder / agent_id / "patch.diff"

    def write_patch(self, patch: bytes) -> None:
        """The patch, and the link to it where older tools look for it."""
        write_bytes(self.patch, patch)
        self.patch_link.parent.mkdir(parents=True, exist_ok=True)
        self.patch_link.unlink(missing_ok=True)
        self.patch_link.symlink_to(Path("..") / self.patch.name)


class PairPaths:
    """The folder of one pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.result = folder / "result.json"
        """Written last: a pair with it is done."""
        self.conversation = folder / "conversation.json"
        self.tasks = folder / "tasks.json"
        """In setting team: the shared task list, as it was at the end."""
        self.task_log = folder / "task_log.json"
        """Every change to it, every request, every file that was shared."""
        self.evaluation = folder / "eval.json"
        self.merged_patch = folder / "merged.patch"
        self.judgement = folder / "judge.json"
        """A model's opinion of why the pair failed; only where one was asked for."""
        self.team_bundle = folder / "team.bundle"
        """The branches that agents shared, to be cloned."""
        self.team_repository = folder / ".team.git"
        """The repository through which they are shared, while the pair runs."""

    def test_output(self, subject: str, feature_id: int) -> Path:
        """What the tests of one feature printed about one patch (`agent1`, `merged`, `solo`)."""
        return self.folder / "tests" / f"{subject}-f{feature_id}.txt"

    def agent(self, agent_id: str) -> AgentPaths:
        return AgentPaths(self.folder, agent_id)


class ExperimentPaths:
    """The folder of one experiment. An arm of an ablation lies in the folder of its study: `study/no-git`."""

    def __init__(self, logs_dir: Path, run_name: str) -> None:
        self.logs_dir = logs_dir
        self.run_name = run_name
        self.root = logs_dir.joinpath(*map(checked_run_name, str(run_name).split("/", 1)))
        self.config = self.root / "config.json"
        self.summary = self.root / "summary.json"
        self.study = self.root / "study.json"
        """Of an ablation: its arms, which are the folders beside it."""
        self.error_log = self.root / "errors.log"
        """Tracebacks, of errors that nobody expected."""
        self.jobs = self.root / "jobs"
        """What jobs on other machines get and tell, while there are any."""
        self.jobs_record = self.root / "jobs.json"
        """Which jobs those are."""
        self.batch_record = self.root / "batch.json"
        """The same of the job at Google Batch that judges what agents here have done."""
        self.lock_file = self.root / ".lock"
        """Locked and rewritten by the process that works on the experiment."""
        self.driver_log = self.root / "driver.log"
        """What a run in the background prints."""

    def pair(self, pair: Pair, setting: Setting) -> PairPaths:
        return self.pair_named(setting, pair.task.repo, pair.task.task_id, pair.feature_ids)

    def pair_named(
        self, setting: Setting, repo: str, task_id: int, feature_ids: Sequence[int]
    ) -> PairPaths:
        name = "_".join(f"f{number}" for number in feature_ids)
        return PairPaths(self.root / setting / repo / str(task_id) / name)

    def archive(self, pair: Pair, setting: Setting) -> Path | None:
        """Move an earlier attempt out of the way, in one rename; None where there was none."""
        folder = self.pair(pair, setting).folder
        if not folder.is_dir():
            return None
        for leftover in folder.rglob(f"{_TEMPORARY}*"):
            leftover.unlink(missing_ok=True)
        home = self.root / "attempts" / folder.relative_to(self.root)
        home.mkdir(parents=True, exist_ok=True)
        number = 1 + max(
            (int(entry.name) for entry in home.iterdir() if entry.name.isdigit()), default=0
        )
        target = home / f"{number:03d}"
        folder.rename(target)
        return target

    def settings_on_disk(self) -> tuple[Setting, ...]:
        return tuple(setting for setting in SETTINGS if (self.root / setting).is_dir())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive use of the experiment; the error names the process that has it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            opened = self.lock_file.open("a+")
        except OSError as error:
            if error.errno in _FULL:
                raise
            raise UserError(
                f"cannot write to {self.root}: {error.strerror}; choose another folder with --log-dir"
            ) from error
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = self.holder() or "another process"
                raise UserError(
                    f"experiment {self.run_name!r} is in use by {holder}; wait for it or end it"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            try:
                yield
            finally:
                with suppress(OSError):
                    file.truncate(0)

    def holder(self) -> str | None:
        """Who has the lock now."""
        with suppress(OSError), self.lock_file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
        return None


def error_record(
    paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception
) -> dict[str, Any]:
    """What result.json or eval.json says of a pair that ended in an error; it is run again next time."""
    expected = isinstance(error, CooperBenchError)
    if not expected:
        trace = "".join(traceback.format_exception(error))
        paths.root.mkdir(parents=True, exist_ok=True)
        with paths.error_log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{utc_now()} {pair.label}\n{redact(trace)}\n")
    return {
        "status": "error",
        "run_name": paths.run_name,
        "repo": pair.task.repo,
        "task_id": pair.task.task_id,
        "features": list(pair.feature_ids),
        "setting": setting,
        "error": redact(str(error) if expected else f"{type(error).__name__}: {error}"),
        "infrastructure": isinstance(error, InfraError) or getattr(error, "errno", None) in _FULL,
        "ended_at": utc_now(),
        "version": __version__,
    }


def is_finished(paths: PairPaths) -> bool:
    """Has this pair a good result, one that is not run again?"""
    result = read_json(paths.result)
    return result is not None and result.get("status") == "completed"


def is_undamaged(paths: PairPaths) -> bool:
    """Are the patches of a finished pair as they were taken? Where nothing can be compared, nothing is run again."""
    agents = (read_json(paths.result) or {}).get("agents")
    for name, one in agents.items() if isinstance(agents, dict) else ():
        digest = one.get("patch_sha256") if isinstance(one, dict) else None
        patch = paths.agent(name).patch
        if digest and (not patch.is_file() or sha256(patch.read_bytes()).hexdigest() != digest):
            return False
    return True
