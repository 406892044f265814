"""What a job does on its node: the same as a run here, with a few pairs, telling the driver what happens."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from cooperbench._version import __version__
from cooperbench.agents import llm
from cooperbench.agents.session import AgentProgress
from cooperbench.backends.ownership import lock_path, locked
from cooperbench.errors import InfraError, Interrupted, RunStopped, UserError
from cooperbench.eval.reference_store import ReferenceStore, export_references
from cooperbench.models import AgentSlot, Message, Pair, Usage
from cooperbench.records.reference import ReferenceRecord
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.experiment import Arm, Budget, Experiment, mailboxes_for, open_backend
from cooperbench.runner.model_server import check_model_servers
from cooperbench.sandbox.manager import SandboxManager
from cooperbench.secrets import redact
from cooperbench.temporary import owned_prefix, remove_tree

Event = dict[str, Any]
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class JobOrder:
    """All that one job needs to know."""

    job: str
    """Its name, unique within the experiment."""
    work: tuple[tuple[RunConfig, Pair], ...]
    files: tuple[tuple[Path, bytes], ...] = ()
    """What nodes cannot see: folders here, and what is in them. Others they read, and write, where the driver does."""
    carries_logs: bool = False
    """Results have to be carried back."""
    references: tuple[ReferenceRecord, ...] = ()
    """With them: what the driver knows of the features of its pairs."""
    references_dir: Path | None = None
    """Where it finds and keeps references; None: in the cache of the node."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For what is not set on the node, where the engine does not pass it on itself."""
    version: str = __version__


class Link(Protocol):
    """From a job to the driver."""

    owner: str
    """Which job on which node, for people."""

    def tell(self, event: Event) -> None: ...

    def may_start(self) -> bool:
        """Whether the driver still lets pairs begin."""
        ...


def key_of(config: RunConfig, pair: Pair) -> str:
    """A pair of an experiment, in events and in jobs.json."""
    return f"{config.setting} {pair.label}"


def work_on(order: JobOrder, link: Link) -> None:
    """Run and judge the pairs of one job. Its last event is `done`, with the error where there is one."""
    for name, value in order.environment.items():
        os.environ.setdefault(name, value)
    done: Event = {"kind": "done"}
    try:
        if order.version != __version__:
            raise UserError(
                f"CooperBench is {__version__} there, and {order.version} here; install the same"
            )
        with on_this_node(order) as here:
            _work(here, link)
    except Interrupted:
        raise
    except Exception as error:
        refused = isinstance(error, UserError)
        reason = str(error) if refused else "".join(traceback.format_exception_only(error)).strip()
        done["error"] = f"{link.owner}: {redact(reason)}"
        done |= {"refused": refused, "stops": isinstance(error, RunStopped)}
        traceback.print_exc()
    link.tell(done)


def _work(order: JobOrder, link: Link) -> None:
    configs = dict.fromkeys(config for config, _ in order.work)
    if not order.carries_logs:
        llm.share_pauses(next(iter(configs)).logs_dir / ".rate-limits")
    with ExitStack() as stack:
        for config, pair in order.work:
            # A job that Slurm thinks dead may still be at work on it: then this one waits.
            stack.enter_context(
                locked(lock_path(config.paths.jobs / "claims", key_of(config, pair)))
            )
        # From disk again: a job that is started once more goes on where it was.
        arms = [
            Arm(one, [pair for config, pair in order.work if config == one]).planned()
            for one in configs
        ]
        for arm in arms:
            for pair in arm.to_run:
                if not arm.config.replay_from:
                    check_model_servers(arm.config.agent_specs(pair))
        backend = open_backend(arms[0].config)
        mailboxes = mailboxes_for(arms, stack)
        sandboxes = stack.enter_context(SandboxManager(backend))
        store = ReferenceStore(order.references_dir)
        for reference in order.references:
            store.save(reference)
        reporter, budget = _Reporter(order, link, store), _DriversBudget(link)
        try:
            Experiment(arms, sandboxes, reporter, mailboxes, budget, store).work_through()
        finally:
            for config in configs if order.carries_logs else ():
                # For what the engine keeps of what jobs print: the file itself stays on the node, and is removed.
                if config.paths.error_log.is_file():
                    sys.stderr.write(config.paths.error_log.read_text("utf-8", "replace"))


class _DriversBudget(Budget):
    """The driver's: it adds up what all jobs spend."""

    def __init__(self, link: Link) -> None:
        super().__init__(None)
        self._link = link

    def spend(self, usage: Usage) -> None:
        self._link.tell({"kind": "spent", "cost": usage.cost})

    def try_start(self) -> bool:
        return self._link.may_start()


class _Reporter(Display):
    """Tells the driver, which shows it."""

    def __init__(self, order: JobOrder, link: Link, store: ReferenceStore) -> None:
        super().__init__()
        self._order = order
        self._link = link
        self._store = store
        self._next_progress: dict[tuple[Pair, str], float] = {}

    def note(self, text: str) -> None:
        self._link.tell({"kind": "note", "text": text})

    def progress(self, what: str, label: str, done: int, total: int) -> None:
        """The driver counts pairs."""

    def pair_started(self, pair: Pair, slots: Sequence[AgentSlot]) -> None:  # noqa: ARG002  # the driver knows them
        self._report("started", pair)

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        self._report("outage", pair, agent_id=agent_id, reason=reason)

    def agent_progress(self, pair: Pair, agent_id: str, progress: AgentProgress) -> None:
        """Send at most one event per agent in `_PROGRESS_SECONDS`: each one is a write to a shared disk."""
        now = time.monotonic()
        if now < self._next_progress.get((pair, agent_id), 0.0):
            return
        self._next_progress[pair, agent_id] = now + _PROGRESS_SECONDS
        self._report("progress", pair, agent_id=agent_id, progress=asdict(progress))

    def message(self, pair: Pair, message: Message) -> None:
        self._report("message", pair, message=asdict(message))

    def pair_ended(self, pair: Pair, result: Mapping[str, Any]) -> None:
        self._report("ended", pair, record=result, files=self._packed(pair))

    def evaluated(self, pair: Pair, evaluation: Mapping[str, Any]) -> None:
        files = self._packed(pair, "merged.patch", "tests")
        references = export_references(self._store.known([pair])) if files else None
        self._report("evaluated", pair, record=evaluation, files=files, references=references)

    def _report(self, kind: str, pair: Pair, **content: Any) -> None:
        self._link.tell({"kind": kind, "pair": key_of(self._config_of(pair), pair), **content})

    def _config_of(self, pair: Pair) -> RunConfig:
        return next(config for config, other in self._order.work if other == pair)

    def _packed(self, pair: Pair, *names: str) -> str | None:
        """None where the driver sees the files anyway."""
        if not self._order.carries_logs:
            return None
        config = self._config_of(pair)
        folder = config.paths.pair(pair, config.setting).folder
        return base64.b64encode(pack_folder(folder, names)).decode()


@contextmanager
def on_this_node(order: JobOrder) -> Iterator[JobOrder]:
    """The order with paths of this node: what came with it is unpacked for as long as the block lasts."""
    root = Path(tempfile.mkdtemp(prefix=owned_prefix("job")))

    def here(path: Path) -> Path:
        moved = root / path.absolute().relative_to("/")
        return moved if moved.exists() else path

    def config_here(config: RunConfig) -> RunConfig:
        paths = [str(here(path)) if path else "" for path in config.agent_config_paths]
        return replace(
            config,
            agent_config=config.agent_config and ",".join(paths),
            prompts_dir=config.prompts_dir and here(config.prompts_dir),
            logs_dir=root / config.logs_dir.relative_to("/")
            if order.carries_logs
            else config.logs_dir,
        )

    try:
        for folder, packed in order.files:
            unpack_folder(packed, root / folder.relative_to("/"))
        work = [
            (config_here(config), replace(pair, task=replace(pair.task, path=here(pair.task.path))))
            for config, pair in order.work
        ]
        yield replace(order, work=tuple(work))
    finally:
        remove_tree(root)


def pack_folder(folder: Path, names: Sequence[str] = ()) -> bytes:
    """A folder, or these of the names in it that are there: the same bytes for the same files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        is_plain = member.isreg() or member.isdir() or member.issym()
        if not is_plain or Path(member.name).name == "__pycache__":
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names or (".",):
            if (folder / name).exists():
                archive.add(folder / name, arcname=name, filter=plain)
    return zlib.compress(buffer.getvalue(), 6)


def unpack_folder(packed: bytes, folder: Path) -> None:
    """Unpack what `pack_folder` packed. Nothing is written outside the folder.

    Python before 3.11.4 cannot filter archives. There only plain files and folders are accepted.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed))) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            else:
                _reject_unsafe_members(archive)
            archive.extractall(folder)  # noqa: S202 (members are filtered or checked above)
    except (OSError, tarfile.TarError, zlib.error) as error:
        raise InfraError(f"what came from another machine cannot be unpacked: {error}") from error


def _reject_unsafe_members(archive: tarfile.TarFile) -> None:
    for member in archive.getmembers():
        path = PurePosixPath(member.name)
        is_inside = not path.is_absolute() and ".." not in path.parts
        if not is_inside or not (member.isfile() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name} is not a file or folder inside of it")
