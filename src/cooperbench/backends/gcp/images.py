"""Tasks' images as references that hold on every machine: what each machine calls its own is found out there.

Machines pull or build a task's image when its first sandbox is placed on them. An image that comes from a registry must
be the same everywhere: the digest that was seen on the first machine is the one that counts.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cooperbench.backends.docker.settings import read_settings
from cooperbench.backends.modal.registry import resolve_digest
from cooperbench.dataset.discovery import demo_dir
from cooperbench.dataset.images import ENVIRONMENT_VARIABLE, PUBLISHED_TEMPLATE, image_name, image_template
from cooperbench.errors import InfraError
from cooperbench.models import Image

if TYPE_CHECKING:
    from cooperbench.backends.gcp.machine import Machine
    from cooperbench.models import Task

_AGENTS = "#agents"


class TaskImages:
    """Of one backend object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._digests: dict[Task, str] = {}
        self._registry_is_out_of_reach = False

    def describe(self, task: Task) -> Image:
        """References for `create_sandbox`, and the digest where a registry tells it without being signed in to."""
        template = os.environ.get(ENVIRONMENT_VARIABLE)
        name = image_name(task, image_template(template) if template else PUBLISHED_TEMPLATE)
        reference = f"{task.label}={name}"
        with self._lock:
            self._tasks[reference] = self._tasks[reference + _AGENTS] = task
        return Image(reference, reference + _AGENTS, self._told_by_registry(task, name))

    def task_of(self, reference: str) -> Task | None:
        """None for a name that is a registry's."""
        with self._lock:
            return self._tasks.get(reference)

    def _told_by_registry(self, task: Task, name: str) -> str:
        in_the_demo = task.path.resolve().is_relative_to(demo_dir().resolve())
        if in_the_demo or self._registry_is_out_of_reach or read_settings().pull == "never":
            return ""
        try:
            return resolve_digest(name)
        except InfraError as error:
            self._registry_is_out_of_reach = isinstance(error.__cause__, OSError)
            return ""

    def name_on(self, machine: Machine, reference: str) -> str:
        """What a machine's engine calls it, once it has it."""
        task = self.task_of(reference)
        if task is None:
            return reference
        made = machine.prepare(task)
        with self._lock:
            first = self._digests.setdefault(task, made.digest)
        if first != made.digest and not task.dockerfile.is_file():
            raise InfraError(
                f"{task.label}: {made.reference} has changed in its registry ({made.digest}, it was {first})"
            )
        return (made.agent_reference or made.reference) if reference.endswith(_AGENTS) else made.reference
