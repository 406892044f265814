"""Content of result.json or eval.json if the pair or its evaluation ended in an error."""

from __future__ import annotations

import errno
import traceback
from typing import ClassVar, TypeVar

from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, InfraError
from cooperbench.models import Pair, Setting
from cooperbench.records.files import Record
from cooperbench.secrets import redact
from cooperbench.storage import ExperimentPaths, open_without_links, utc_now

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class PairError(Record, kw_only=True, frozen=True):
    """An error that left no outcome. It is not scored, and the same command tries again."""

    SCHEMA: ClassVar[str] = ""

    status: str = "error"
    run_name: str
    repo: str
    task_id: int
    features: list[int]
    setting: str
    error: str
    """One line for people."""
    infrastructure: bool
    """Whether a sandbox, a server or a provider failed, or the disk was full."""
    ended_at: str
    version: str

    @property
    def is_completed(self) -> bool:
        """Always false: there is no outcome."""
        return False


E = TypeVar("E", bound=PairError)


def make_error(
    kind: type[E], paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception
) -> E:
    """Return the record of an error; append the traceback of an unexpected one to errors.log."""
    if isinstance(error, CooperBenchError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
        log_traceback(paths, pair, error)
    return kind(
        run_name=paths.run_name,
        repo=pair.task.repo,
        task_id=pair.task.task_id,
        features=list(pair.feature_ids),
        setting=setting,
        error=redact(text),
        infrastructure=_is_infrastructure(error),
        ended_at=utc_now(),
        version=__version__,
    )


def _is_infrastructure(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return True
    return isinstance(error, InfraError)


def log_traceback(paths: ExperimentPaths, pair: Pair, error: BaseException) -> None:
    """Append the traceback of an unexpected error to errors.log."""
    trace = "".join(traceback.format_exception(error))
    paths.root.mkdir(parents=True, exist_ok=True)
    with open_without_links(
        paths.error_log, "a", encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(f"{utc_now()} {pair.label}\n{redact(trace)}\n")
