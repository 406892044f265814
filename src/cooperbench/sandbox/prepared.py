"""The images of an experiment's tasks: each made ready once, in a small pool, before pairs need them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from cooperbench.dataset.images import image_name
from cooperbench.errors import CooperBenchError, InfraError
from cooperbench.models import Image
from cooperbench.sandbox.contract import capabilities_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cooperbench.models import Task
    from cooperbench.sandbox.contract import CheckingBackend, EvalBackend, PreparingBackend

WORKERS = 4


class PreparedImages:
    """`prepare` asks for all of them, `get` waits for one; a task that cannot be prepared fails alone."""

    def __init__(self, backend: EvalBackend) -> None:
        self._backend = backend
        self._images: dict[Task, Future[Image]] = {}

    def prepare(self, tasks: Iterable[Task], progress: Callable[[Task, int, int], None]) -> None:
        """All of them, telling after each how many of how many are done. Failures are told by `get`.

        UserError at once where the backend cannot work at all.
        """
        wanted = list(dict.fromkeys(task for task in tasks if task not in self._images))
        if wanted and capabilities_of(self._backend).checks:
            cast("CheckingBackend", self._backend).check()
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="image") as pool:
            for task in wanted:
                self._images[task] = pool.submit(self._make, task)
            for number, task in enumerate(wanted, 1):
                self._images[task].exception()
                progress(task, number, len(wanted))

    def get(self, task: Task) -> Image:
        if task not in self._images:
            self.prepare([task], lambda *_: None)
        return self._images[task].result()

    def _make(self, task: Task) -> Image:
        if not capabilities_of(self._backend).prepares:
            return Image(image_name(task))
        try:
            return cast("PreparingBackend", self._backend).prepare(task)
        except CooperBenchError:
            raise
        except Exception as error:
            raise InfraError(
                f"{task.label} could not be prepared: {type(error).__name__}: {error}"
            ) from error
