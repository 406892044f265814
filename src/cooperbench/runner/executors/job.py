"""The work of one job on its node: the same as a local run of a few pairs, reported by events."""

from __future__ import annotations

import base64
import io
import os
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.agents import llm
from cooperbench.agents.session import AgentProgress
from cooperbench.backends.ownership import lock_path, locked
from cooperbench.errors import InfraError, Interrupted, RunStopped, UserError
from cooperbench.eval.reference_store import ReferenceStore, export_references
from cooperbench.models import AgentSlot, Message, Pair, Usage
from cooperbench.records import JsonObject
from cooperbench.records.evaluation import Evaluation, EvaluationError
from cooperbench.records.reference import ReferenceRecord
from cooperbench.records.result import PairResult, ResultError
from cooperbench.runner.budget import Budget
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.executors.local import open_backend, open_plan_mailboxes
from cooperbench.runner.model_server import check_model_servers
from cooperbench.runner.plan import Plan, plan_pairs
from cooperbench.runner.schedule import Scheduler, Work
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.temporary import owned_prefix, remove_tree

Event = JsonObject
"""A JSON object from a job to the driver; its `kind` says which other keys it has."""
_PROGRESS_SECONDS = 5.0
_MAX_UNPACKED_BYTES = 4 << 30
"""Size of the largest folder that another machine may send."""


class PackedFolder(NamedTuple):
    """A folder of the driver's machine and some of its files, as `pack_folder` packs them."""

    folder: Path
    content: bytes


@dataclass(frozen=True)
class JobOrder:
    """Everything that one job needs."""

    job: str
    """Name of the job, unique within the experiment."""
    work: tuple[Work, ...]
    folders: tuple[PackedFolder, ...] = ()
    """Files that nodes do not see. Other files are read and written at the driver's paths."""
    carries_logs: bool = False
    """Whether results have to be sent back."""
    references: tuple[ReferenceRecord, ...] = ()
    """References of the pairs' features that the driver knows; only with `carries_logs`."""
    references_dir: Path | None = None
    """Folder for references; None: the cache of the node."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set if they are not set on the node."""
    version: str = __version__


class Link(Protocol):
    """The connection of a job to the driver."""

    owner: str
    """The job and its node, for people."""

    def send(self, event: Event) -> None:
        """Send an event to the driver."""
        ...

    def may_start(self) -> bool:
        """Return whether the driver still allows pairs to start."""
        ...


def work_key(config: RunConfig, pair: Pair) -> str:
    """Return the key of a pair in events and in jobs.json."""
    return f"{config.setting} {pair.label}"


def run_job(order: JobOrder, link: Link) -> None:
    """Run and evaluate the pairs of a job. The last event is `done`, with the error if any."""
    for name, value in order.environment.items():
        os.environ.setdefault(name, value)
    done: Event = {"kind": "done"}
    try:
        if order.version != __version__:
            raise UserError(
                f"the node has CooperBench {__version__} and the driver {order.version}; "
                "install the same version"
            )
        with unpack_order(order) as local_order:
            _run_pairs(local_order, link)
    except Interrupted:
        raise
    except Exception as error:
        done |= _describe_error(error, link)
        traceback.print_exc()
    link.send(done)


def _describe_error(error: Exception, link: Link) -> Event:
    is_user_error = isinstance(error, UserError)
    if is_user_error:
        reason = str(error)
    else:
        reason = "".join(traceback.format_exception_only(error)).strip()
    return {
        "error": f"{link.owner}: {redact(reason)}",
        "refused": is_user_error,
        "stops": isinstance(error, RunStopped),
    }


def _run_pairs(order: JobOrder, link: Link) -> None:
    configs = list(dict.fromkeys(work.config for work in order.work))
    if not order.carries_logs:
        llm.share_pauses(configs[0].logs_dir / ".rate-limits")
    with ExitStack() as stack:
        for config, pair in order.work:
            # A job that Slurm believes dead may still run the pair: then this one waits.
            claim = lock_path(config.paths.jobs / "claims", work_key(config, pair))
            stack.enter_context(locked(claim))
        # Read from disk again: a job that is restarted continues where it was.
        plans = [_plan_of(config, order.work) for config in configs]
        _check_servers(plans)
        store = ReferenceStore(order.references_dir)
        for reference in order.references:
            store.save(reference)
        reporter = _Reporter(order, link, store)
        backend = open_backend(configs[0])
        mailboxes = open_plan_mailboxes(plans, stack)
        sandboxes = stack.enter_context(SandboxManager(backend))
        try:
            Scheduler(plans, sandboxes, reporter, mailboxes, _DriverBudget(link), store).run()
        finally:
            if order.carries_logs:
                _print_error_logs(configs)


def _plan_of(config: RunConfig, work: Sequence[Work]) -> Plan:
    return plan_pairs(config, [pair for pair_config, pair in work if pair_config == config])


def _check_servers(plans: Sequence[Plan]) -> None:
    for plan in plans:
        if not plan.config.replay_from:
            for pair in plan.to_run:
                check_model_servers(plan.config.agent_specs(pair))


def _print_error_logs(configs: Sequence[RunConfig]) -> None:
    """Print errors.log, which is removed with the job, to the output that the cluster keeps."""
    for config in configs:
        if config.paths.error_log.is_file():
            sys.stderr.write(config.paths.error_log.read_text("utf-8", "replace"))


class _DriverBudget(Budget):
    """The budget of the driver, which adds up the costs of all jobs."""

    def __init__(self, link: Link) -> None:
        super().__init__(None)
        self._link = link

    def spend(self, usage: Usage) -> None:
        """Send the cost to the driver."""
        self._link.send({"kind": "spent", "cost": usage.cost})

    def try_start(self) -> bool:
        """Return whether the driver allows another pair to start."""
        return self._link.may_start()


class _Reporter(Display):
    """Sends everything to the driver, which displays it."""

    def __init__(self, order: JobOrder, link: Link, store: ReferenceStore) -> None:
        super().__init__()
        self._order = order
        self._link = link
        self._store = store
        self._next_progress: dict[tuple[Pair, str], float] = {}

    def note(self, text: str) -> None:
        """Send a note."""
        self._link.send({"kind": "note", "text": text})

    def progress(self, action: str, label: str, done: int, total: int) -> None:
        """Ignore it: the driver counts pairs."""

    def pair_started(self, pair: Pair, slots: Sequence[AgentSlot]) -> None:
        """Send that a pair has started."""
        del slots  # the driver knows them
        self._send("started", pair)

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        """Send that an agent's model fails or answers again."""
        self._send("outage", pair, agent_id=agent_id, reason=reason)

    def agent_progress(self, pair: Pair, agent_id: str, progress: AgentProgress) -> None:
        """Send at most one event in `_PROGRESS_SECONDS`: each is a write to a shared disk."""
        now = time.monotonic()
        if now < self._next_progress.get((pair, agent_id), 0.0):
            return
        self._next_progress[pair, agent_id] = now + _PROGRESS_SECONDS
        self._send("progress", pair, agent_id=agent_id, progress=asdict(progress))

    def message(self, pair: Pair, message: Message) -> None:
        """Send a message between agents."""
        self._send("message", pair, message=asdict(message))

    def pair_ended(self, pair: Pair, result: PairResult | ResultError) -> None:
        """Send the result of a pair."""
        record = records.to_object(result)
        self._send("ended", pair, record=record, files=self._pack_results(pair))

    def evaluated(self, pair: Pair, evaluation: Evaluation | EvaluationError) -> None:
        """Send the evaluation of a pair, with the references that it used."""
        files = self._pack_results(pair, "merged.patch", "tests")
        references = export_references(self._store.known([pair])) if files else None
        record = records.to_object(evaluation)
        self._send("evaluated", pair, record=record, files=files, references=references)

    def _send(self, kind: str, pair: Pair, **content: Any) -> None:
        key = work_key(self._config_of(pair), pair)
        self._link.send({"kind": kind, "pair": key, **content})

    def _config_of(self, pair: Pair) -> RunConfig:
        return next(work.config for work in self._order.work if work.pair == pair)

    def _pack_results(self, pair: Pair, *names: str) -> str | None:
        """Return files of a pair for the driver; None if the driver sees them anyway."""
        if not self._order.carries_logs:
            return None
        config = self._config_of(pair)
        folder = config.paths.pair(pair, config.setting).folder
        return base64.b64encode(pack_folder(folder, names)).decode()


@contextmanager
def unpack_order(order: JobOrder) -> Iterator[JobOrder]:
    """Unpack the files of an order; yield the order with their paths on this node."""
    root = Path(tempfile.mkdtemp(prefix=owned_prefix("job")))
    try:
        for folder, content in order.folders:
            unpack_folder(content, _below(root, folder))
        work = tuple(_localize(entry, root, order.carries_logs) for entry in order.work)
        yield replace(order, work=work)
    finally:
        remove_tree(root)


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _local_path(root: Path, path: Path) -> Path:
    """Return where a path is on this node: unpacked, or the same as on the driver's machine."""
    unpacked = _below(root, path)
    return unpacked if unpacked.exists() else path


def _localize(work: Work, root: Path, carries_logs: bool) -> Work:
    """Return the work with paths below `root` for all files that came with the order."""
    config, pair = work
    changes: JsonObject = {}
    if config.agent_config is not None:
        paths = [str(_local_path(root, path)) if path else "" for path in config.agent_config_paths]
        changes["agent_config"] = ",".join(paths)
    if config.prompts_dir is not None:
        changes["prompts_dir"] = _local_path(root, config.prompts_dir)
    if carries_logs:
        changes["logs_dir"] = _below(root, config.logs_dir)
    task = replace(pair.task, path=_local_path(root, pair.task.path))
    return Work(replace(config, **changes), replace(pair, task=task))


def pack_folder(folder: Path, names: Sequence[str] = ()) -> bytes:
    """Pack a folder, or the existing ones of some names in it; equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names or (".",):
            if (folder / name).exists():
                archive.add(folder / name, arcname=name, filter=_normalize)
    return zlib.compress(buffer.getvalue(), 6)


def _normalize(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Remove owner and time of a packed file; leave out devices and bytecode caches."""
    is_file_or_folder = member.isreg() or member.isdir() or member.issym()
    if not is_file_or_folder or Path(member.name).name == "__pycache__":
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def unpack_folder(packed: bytes, folder: Path) -> None:
    """Unpack what `pack_folder` packed. Nothing is written outside the folder.

    Python before 3.11.4 cannot filter archives. There only files, folders and links
    inside of the folder are accepted.
    """
    try:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(packed, _MAX_UNPACKED_BYTES)
        if not unpacker.eof:
            raise tarfile.ReadError("they are incomplete, or too large")
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            else:
                _reject_unsafe_members(archive)
            archive.extractall(folder)  # noqa: S202  # members are filtered or checked above
    except (OSError, tarfile.TarError, zlib.error) as error:
        raise InfraError(f"files from another machine cannot be unpacked: {error}") from error


def _reject_unsafe_members(archive: tarfile.TarFile) -> None:
    members = archive.getmembers()
    links = {_resolve(member.name, frozenset()) for member in members if member.issym()}
    for member in members:
        is_safe = member.isfile() or member.isdir() or member.issym()
        resolved = _resolve(member.name, links)
        if is_safe and member.issym():
            target = str(PurePosixPath(member.name).parent / member.linkname)
            is_safe = _resolve(target, links) is not None
        if not is_safe or resolved is None:
            raise tarfile.ExtractError(f"{member.name} does not stay inside of the folder")


def _resolve(name: str, links: Container[str | None]) -> str | None:
    """Return a path without `..`; None if it leaves the folder or goes through one of the links."""
    parts: list[str] = []
    for part in PurePosixPath(name).parts:
        if part == "/" or (part == ".." and not parts) or "/".join(parts) in links:
            return None
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
