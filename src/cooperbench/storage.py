"""Every name under logs/, atomic writes, and the lock on an experiment.

Files appear whole or not at all. The result.json of a pair is its last file: a pair that has one
is finished. What is in the JSON files is in `cooperbench.records`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TextIO, cast

from cooperbench.errors import UserError
from cooperbench.models import SETTINGS, Pair, Setting

DEFAULT_LOGS_DIR = "logs"
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Size of the largest file that is read."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = ".writing-"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=-]{0,119}")


def utc_now() -> str:
    """Return the time as all files have it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two times as files have them.

    A time without a zone is UTC. The result is never negative: clocks of two processes may differ
    a little.

    Returns:
        None if one of them is not a time.
    """
    first, last = parse_time(start), parse_time(end)
    if first is None or last is None:
        return None
    return round(max(0.0, (last - first).total_seconds()), 3)


def parse_time(text: str | None) -> datetime | None:
    """Return a time as files have it; None if the text is not a time. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; it is on disk when this returns."""
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
    """Write a text atomically, as UTF-8."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, content: Mapping[str, Any] | list[Any]) -> None:
    """Write JSON that is not a record atomically.

    Unpaired surrogates (from bytes that were not UTF-8) are written as JSON escapes.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(content, indent=2).encode()
    write_bytes(path, data + b"\n")


def read_bytes(path: Path, *, follow_link: bool = False) -> bytes | None:
    """Return the content of a file; None if there is none that can be read.

    Files of datasets may be symbolic links (`follow_link`), those of runs may not.
    """
    try:
        return read_regular_file(path, follow_link=follow_link)
    except OSError:
        return None


def read_regular_file(path: Path, *, follow_link: bool = False) -> bytes:
    """Return the content of a regular file. Results may come from others, and a device never ends.

    A symbolic link could lead to any file of the user, which a report would then show.

    Raises:
        OSError: It is a symbolic link, it is not a regular file, or it is too large.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags if follow_link else flags | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES >> 20} MiB", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read() or b""
    finally:
        os.close(descriptor)


def open_without_links(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file for writing, unless it is a symbolic link: it could lead to any file of the user.

    Raises:
        OSError: It is a symbolic link.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    return open(path, mode, opener=opener, **options)


def read_json(path: Path, *, follow_link: bool = False) -> dict[str, Any] | None:
    """Return the object in a JSON file that is not a record; None if there is none."""
    try:
        content = json.loads(read_regular_file(path, follow_link=follow_link))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def checked_run_name(name: str) -> str:
    """Return the name of a run, which is the name of its folder.

    Raises:
        UserError: It could leave logs/ or hide in it.
    """
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid experiment name: use up to 120 letters, digits and"
            " . _ + @ = -, and begin with a letter or digit"
        )
    return name


class AgentPaths:
    """The files of one agent in a pair's folder."""

    def __init__(self, folder: Path, agent_id: str) -> None:
        self.folder = folder
        self.agent_id = agent_id
        self.patch = folder / f"{agent_id}.patch"
        self.log = folder / f"{agent_id}.log"
        """The agent's steps for people."""
        self.trajectory = folder / agent_id / "trajectory.json"
        self.journal = folder / agent_id / "steps.jsonl"
        """The steps while the agent works, one JSON object per line."""
        self.exchanges = folder / agent_id / "exchanges.jsonl.gz"
        """Requests to models and their answers, with `--record`."""
        self.patch_link = folder / agent_id / "patch.diff"
        """Link to the patch, where the public documentation has it."""

    def write_patch(self, patch: bytes) -> None:
        """Write the patch and the link to it."""
        write_bytes(self.patch, patch)
        self.patch_link.parent.mkdir(parents=True, exist_ok=True)
        self.patch_link.unlink(missing_ok=True)
        self.patch_link.symlink_to(Path("..") / self.patch.name)


class PairPaths:
    """The folder of one pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.result = folder / "result.json"
        """The last file: a pair with a complete one is finished."""
        self.conversation = folder / "conversation.json"
        self.tasks = folder / "tasks.json"
        """The shared task list at the end; only in setting team."""
        self.task_log = folder / "task_log.json"
        """Every change to the task list and every request; only in setting team."""
        self.workspace = folder / "workspace.json"
        """Which agent's commands changed which files; only with a shared workspace."""
        self.evaluation = folder / "eval.json"
        self.merged_patch = folder / "merged.patch"
        self.judgement = folder / "judge.json"
        """The LLM judge's opinion of why the pair failed, with `report --judge`."""
        self.recorded = folder / "recorded.json"
        """The verdict that came with an imported run."""
        self.recorded_files = folder / "recorded"
        """Small files of an imported run as they were."""
        self.team_bundle = folder / "team.bundle"
        """The branches that agents shared; it can be cloned."""
        self.team_repository = folder / ".team.git"
        """The shared git repository, while the pair runs."""

    def test_output(self, subject: str, feature_id: int) -> Path:
        """Return the file with the output of a feature's tests.

        Args:
            subject: The tested patch: `agent1`, `solo`, `merged` or `lead`.
            feature_id: The feature.
        """
        return self.folder / "tests" / f"{subject}-f{feature_id}.txt"

    def agent(self, agent_id: str) -> AgentPaths:
        """Return the files of an agent. The patch of a shared workspace is the one of `shared`."""
        return AgentPaths(self.folder, agent_id)


class ExperimentPaths:
    """The folder of one experiment. An arm of a study is in the study's folder: `study/no-git`."""

    def __init__(self, logs_dir: Path, run_name: str) -> None:
        self.logs_dir = logs_dir
        self.run_name = run_name
        self.root = logs_dir.joinpath(*map(checked_run_name, str(run_name).split("/", 1)))
        self.config = self.root / "config.json"
        self.summary = self.root / "summary.json"
        self.history = self.root / "history.jsonl"
        """Every result and every verdict that the run has had."""
        self.study = self.root / "study.json"
        """The arms of a study, each in a folder of its own beside this file."""
        self.plan = self.root / "plan.json"
        """What a study will do and test, written before its first run."""
        self.forks = self.root / "forks.json"
        """The forks of a recorded run, each arm in a folder of its own beside this file."""
        self.import_record = self.root / "import.json"
        """Where an imported run came from, and what was missing."""
        self.error_log = self.root / "errors.log"
        """Tracebacks of unexpected errors."""
        self.jobs = self.root / "jobs"
        """Files that jobs on other machines exchange with the driver."""
        self.jobs_record = self.root / "jobs.json"
        """The jobs on a cluster."""
        self.batch_record = self.root / "batch.json"
        """The jobs at Google Batch."""
        self.lock_file = self.root / ".lock"
        """Locked and rewritten by the process that works on the experiment."""
        self.driver_log = self.root / "driver.log"
        """Output of a run in the background."""

    def pair(self, pair: Pair, setting: Setting) -> PairPaths:
        """Return the folder of a pair."""
        return self.pair_named(setting, pair.task.repo, pair.task.task_id, pair.feature_ids)

    def pair_named(
        self, setting: Setting, repo: str, task_id: int, feature_ids: Sequence[int]
    ) -> PairPaths:
        """Return the folder of a pair whose task may not be on this machine."""
        name = "_".join(f"f{feature_id}" for feature_id in feature_ids)
        return PairPaths(self.root / setting / repo / str(task_id) / name)

    def folder_name(self, pair: Pair, setting: Setting) -> str:
        """Return the folder of a pair, relative to the run's folder: `coop/my_task/1/f1_f2`."""
        return self.pair(pair, setting).folder.relative_to(self.root).as_posix()

    def archive(self, pair: Pair, setting: Setting) -> Path | None:
        """Move an earlier attempt to attempts/, in one rename.

        Returns:
            The new folder; None if there was no earlier attempt.
        """
        folder = self.pair(pair, setting).folder
        if not folder.is_dir():
            return None
        for leftover in folder.rglob(f"{_TEMPORARY}*"):
            leftover.unlink(missing_ok=True)
        archived = self.archived(pair, setting)
        number = int(archived[-1].name) + 1 if archived else 1
        target = self._attempts_folder(pair, setting) / f"{number:03d}"
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        return target

    def archived(self, pair: Pair, setting: Setting) -> list[Path]:
        """Return the folders of earlier attempts at a pair, oldest first."""
        attempts = self._attempts_folder(pair, setting)
        folders = [entry for entry in attempts.glob("*") if entry.name.isdecimal()]
        return sorted(folders, key=lambda folder: int(folder.name))

    def _attempts_folder(self, pair: Pair, setting: Setting) -> Path:
        folder = self.pair(pair, setting).folder
        return self.root / "attempts" / folder.relative_to(self.root)

    def settings_on_disk(self) -> tuple[Setting, ...]:
        """Return the settings that have a folder."""
        return tuple(setting for setting in SETTINGS if (self.root / setting).is_dir())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Use the experiment exclusively.

        Raises:
            UserError: Another process uses it, or the folder cannot be written.
        """
        with self._open_lock_file() as file:
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

    def _open_lock_file(self) -> TextIO:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return cast("TextIO", open_without_links(self.lock_file, "a+"))
        except OSError as error:
            if error.errno in _FULL:
                raise
            reason = error.strerror
            raise UserError(
                f"cannot write to {self.root}: {reason}; choose another folder with --log-dir"
            ) from error

    def holder(self) -> str | None:
        """Return the process that uses the experiment now, for people; None if none does."""
        with suppress(OSError), self.lock_file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
        return None
