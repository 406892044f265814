"""The image that agents get: the task's, with the repository's history replaced by one commit.

The history is removed in a layer on top: what lies below cannot be seen from inside a container. Made once for each
content of the task's image, kept in the engine, and removed by `cooperbench images clean`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from cooperbench.backends.docker.faults import faults
from cooperbench.backends.docker.labels import CONTAINER_ONLY, CONTEXT, PREPARED, TASK
from cooperbench.errors import SandboxError, UserError
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.sandbox.scrub import scrub_script
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.images import Found, ImageStore, Say
    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.models import Task

    MakeSandbox = Callable[[str, int, str, SandboxOptions], DockerSandbox]

PREFIX = "cooperbench-prepared"
INSTALLS_PREFIX = "cooperbench-installs"
_REPO_DIR = "/workspace/repo"
_BASE_GIT_DIR = "/cooperbench/base.git"
_SCRUB_SECONDS = 900
_MISSING = 'for tool in bash git; do command -v "$tool" >/dev/null || { echo "$tool"; exit 0; }; done'
_FORMAT = 2


def prepared_name(task: Task, source: Found) -> str:
    made_of = f"{_FORMAT} {source.image_id}\n".encode() + scrub_script()
    return _name(PREFIX, task, hashlib.sha256(made_of).hexdigest()[:16])


def installs_name(task: Task, key: str) -> str:
    """Of the image with what a task's runner installs."""
    return _name(INSTALLS_PREFIX, task, key)


def _name(prefix: str, task: Task, key: str) -> str:
    return f"{prefix}/{task.repo.lower()}:task{task.task_id}-{key}"


def prepare_agent_image(
    engine: Engine, images: ImageStore, task: Task, source: Found, make_sandbox: MakeSandbox, say: Say
) -> Found:
    """The image for agents, made now if it is not there yet."""
    name = prepared_name(task, source)
    if found := images.find(name):
        return found
    say(f"removing the history from {source.name}")
    options = SandboxOptions(purpose="setup", labels={"task": task.label})
    sandbox = make_sandbox(source.image_id, _SCRUB_SECONDS + 120, _REPO_DIR, options)
    try:
        missing = sandbox.run(["sh", "-c", _MISSING], timeout_seconds=60, cwd="/").stdout_read().strip()
        if missing:
            raise UserError(
                f"the image {source.name} has no {missing}: add it to its Dockerfile, agents need it"
            )
        command = ["bash", "-c", scrub_script().decode(), "scrub", _REPO_DIR, _BASE_GIT_DIR]
        done = sandbox.run(command, timeout_seconds=_SCRUB_SECONDS, cwd="/")
        if done.returncode:
            words = (done.stderr_read().strip() or done.stdout_read().strip()).rpartition("\n")[2]
            raise SandboxError(f"{source.name}: its history cannot be removed: {printable(words)[:300]}")
        return keep_as_image(engine, images, sandbox, name, task, source, PREPARED)
    finally:
        sandbox.terminate()


def keep_as_image(
    engine: Engine,
    images: ImageStore,
    sandbox: DockerSandbox,
    name: str,
    task: Task,
    source: Found,
    kind: str,
) -> Found:
    """A sandbox's files as an image of a `kind` (a label), otherwise configured like its `source`."""
    repository, _, tag = name.partition(":")

    def commit() -> None:
        with faults(f"keeping {name}", engine.client):
            engine.api.commit(sandbox.container, repository, tag, changes=_changes(task, source, kind))

    engine.changing_images(commit)
    found = images.find(name)
    if found is None:
        raise SandboxError(f"{name} is not there, although it was just made")
    return found


def _changes(task: Task, source: Found, kind: str) -> list[str]:
    """The task image's own configuration again: the sandbox's must not come with the files.

    Above all not its owner, or the containers that users make of the image would pass for leftovers.
    """
    labels = {**dict.fromkeys(CONTAINER_ONLY, ""), CONTEXT: "", TASK: task.label, kind: source.image_id}
    return [
        # One a line and without quotes, as Podman takes everything after the first = for the value.
        *(f"LABEL {name}={value}" for name, value in labels.items()),
        f"ENV PATH={source.path}",
        f"WORKDIR {source.workdir}",
        f"ENTRYPOINT {json.dumps(source.entrypoint or [])}",
        # An empty command would not replace the sandbox's.
        f"CMD {json.dumps(source.command or ['sh'])}",
    ]
