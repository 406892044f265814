"""The tiny dataset with a Dockerfile that builds without a network."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cooperbench.dataset.discovery import load_tasks
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Task

_TOKEN = secrets.token_hex(8)
"""So that no other test process has built the same."""
DOCKERFILE = """ARG BASE_IMAGE=none
FROM ${BASE_IMAGE}
COPY . /opt/task
RUN cp /opt/task/runner.sh /usr/local/bin/runner.sh && bash /opt/task/setup.sh /workspace/repo
"""


def write_buildable(folder: Path, dockerfile: str = DOCKERFILE) -> Task:
    """One task; its dataset is `folder`."""
    write_tiny(folder)
    (task,) = load_tasks(folder)
    task.dockerfile.write_text(dockerfile + f"RUN echo {_TOKEN} >/token\n")
    return task
