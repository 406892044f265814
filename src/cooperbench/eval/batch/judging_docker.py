"""The docker backend on a machine that only judges: no image without history is made, as no agent will work in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.images import say_nothing
from cooperbench.models import Image

if TYPE_CHECKING:
    from cooperbench.backends.docker.images import Say
    from cooperbench.models import Task


class JudgingDockerBackend(DockerBackend):
    # Making a layer takes as long as the few test runs that would profit from it here.
    capabilities = replace(DockerBackend.capabilities, snapshots=False)

    def prepare(self, task: Task, say: Say = say_nothing) -> Image:
        """Find, pull or build the task's image; one of the tasks on a machine does, the others wait for it."""
        with self._alone_with(task):
            found = self.images.provide(task, say)
        self.images.remember(found)
        return Image(found.name, digest=found.digest)
