"""What a job does on its node: the same as a run here, with a few pairs, telling the driver what happens."""

from __future__ import annotations

import base64
import os
import tempfile
import traceback
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.agents import llm
from cooperbench.errors import Interrupted, RunStopped, UserError
from cooperbench.eval.batch.entry import pack_folder, unpack_folder
from cooperbench.runner.executors import key_of
from cooperbench.runner.plan import Budget, make_plan
from cooperbench.sandbox.ownership import lock_path, locked
from cooperbench.secrets import redact
from cooperbench.storage import ExperimentPaths
from cooperbench.temporary import owned_prefix, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cooperbench.models import Message, Pair, Seat, Setting, Usage
    from cooperbench.runner.executors import JobOrder, Link


def work_on(order: JobOrder, link: Link) -> None:
    """Run and judge the pairs of one job. Its last event is `done`, also where it was refused (`refused`)."""
    for name, value in order.environment.items():
        os.environ.setdefault(name, value)
    try:
        if order.version != __version__:
            raise UserError(f"CooperBench is {__version__} there, and {order.version} here; install the same")
        with _files(order) as here:
            _work(here, link)
    except UserError as error:
        words = f"{link.owner}: {redact(str(error))}"
        link.tell({"kind": "refused", "error": words, "stops": isinstance(error, RunStopped)})
    except Interrupted:
        raise
    except Exception as error:
        reason = "".join(traceback.format_exception_only(error)).strip()
        link.tell({"kind": "failed", "error": redact(f"{link.owner}: {reason}")})
        raise
    link.tell({"kind": "done"})


def _work(order: JobOrder, link: Link) -> None:
    from cooperbench.runner.api import warm_up
    from cooperbench.runner.experiment import Arm, judge_all, open_backend, work_through
    from cooperbench.sandbox.session import SandboxSession
    from cooperbench.team.mailbox import open_mailboxes

    paths, config = order.judging.paths, order.config
    if not order.carried.logs:
        llm.share_pauses(paths.logs_dir / ".rate-limits")
    with ExitStack() as stack:
        for one in order.work:
            # A job that Slurm thinks dead may still be at work on it: then this one waits.
            stack.enter_context(locked(lock_path(paths.jobs / "claims", key_of(*one))))
        reporter = _Reporter(order, link)
        backend = open_backend(order.backend, order.backend_options)
        if config is None:
            with SandboxSession(backend) as session:
                judge_all(replace(order.judging, work=order.work), session, reporter)
            return
        # From disk again: a job that is started once more goes on where it was.
        plan = make_plan(config, [pair for pair, _ in order.work])
        if plan.to_run:
            warm_up(config)
        talks = plan.to_run and config.setting == "coop" and config.messaging_enabled
        mailboxes = stack.enter_context(
            open_mailboxes(config.redis_url, config.run_name) if talks else nullcontext()
        )
        session = stack.enter_context(SandboxSession(backend))
        work_through([Arm(config, plan, reporter)], session, mailboxes, _DriversBudget(link))


class _DriversBudget(Budget):
    """The driver's: it adds up what all jobs spend."""

    def __init__(self, link: Link) -> None:
        super().__init__(None)
        self._link = link

    def spend(self, usage: Usage) -> None:
        self._link.tell({"kind": "spent", "cost": usage.cost})

    def lets_start(self, pair: Pair) -> bool:  # noqa: ARG002  # it counts those
        return self._link.may_start()


class _Reporter:
    """A `Display` whose screen is elsewhere."""

    def __init__(self, order: JobOrder, link: Link) -> None:
        self._order = order
        self._setting = order.work[0][1]
        self._link = link

    def begin(self, lines: Sequence[str], *, to_run: int, to_judge: int) -> None: ...

    def note(self, text: str) -> None:
        self._link.tell({"kind": "note", "text": text})

    def prepared(self, label: str, done: int, total: int) -> None: ...

    def referenced(self, label: str, done: int, total: int) -> None: ...

    def pair_started(self, pair: Pair, seats: Sequence[Seat]) -> None:  # noqa: ARG002  # the driver knows them
        self._tell("started", pair, self._setting)

    def outage(self, pair: Pair, agent_id: str, reason: str) -> None:
        self._tell("outage", pair, self._setting, agent_id=agent_id, reason=reason)

    def message(self, pair: Pair, message: Message) -> None:
        self._tell("message", pair, self._setting, message=asdict(message))

    def pair_ended(self, pair: Pair, result: dict[str, Any]) -> None:
        setting = self._setting
        self._tell("ended", pair, setting, record=result, files=self._packed(pair, setting))

    def evaluated(self, pair: Pair, evaluation: dict[str, Any]) -> None:
        setting: Setting = evaluation["setting"]
        files = self._packed(pair, setting, "eval.json", "merged.patch", "tests")
        self._tell("evaluated", pair, setting, record=evaluation, files=files)

    def end(self) -> None: ...

    def _tell(self, kind: str, pair: Pair, setting: Setting, **content: Any) -> None:
        self._link.tell({"kind": kind, "pair": key_of(pair, setting), **content})

    def _packed(self, pair: Pair, setting: Setting, *names: str) -> str | None:
        """None where the driver sees the files anyway."""
        if not self._order.carried.logs:
            return None
        folder = self._order.judging.paths.pair(pair, setting).folder
        return base64.b64encode(pack_folder(folder, names)).decode()


@contextmanager
def _files(order: JobOrder) -> Iterator[JobOrder]:
    """The order with paths of this node: what was carried is unpacked for as long as the block lasts."""
    carried, config, paths = order.carried, order.config, order.judging.paths
    folder = Path(tempfile.mkdtemp(prefix=owned_prefix("job")))
    try:
        places = {}
        for label, packed in carried.tasks.items():
            places[label] = folder / "data" / label
            unpack_folder(packed, places[label])
        work = tuple(
            (
                replace(pair, task=replace(pair.task, path=places.get(pair.task.label, pair.task.path))),
                setting,
            )
            for pair, setting in order.work
        )
        if carried.logs:
            paths = ExperimentPaths(folder / "logs", paths.run_name)
        for one in work:
            if packed := carried.results.get(key_of(*one), b""):
                unpack_folder(packed, paths.pair(*one).folder)
        if config is not None:
            for number, (path, content) in enumerate(carried.agent_configs.items()):
                place = folder / f"{number}-{path.name}"
                place.write_bytes(content)
                config = replace(config, agent_config=str(config.agent_config).replace(str(path), str(place)))
            config = replace(config, logs_dir=paths.logs_dir)
        yield replace(order, work=work, config=config, judging=replace(order.judging, paths=paths))
    finally:
        remove_tree(folder)
