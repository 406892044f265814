"""`cooperbench images push`: task images into a registry of the user's, where machines elsewhere can pull them."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.engine import faults
from cooperbench.dataset.images import image_name
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.models import Task

_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*")


def push_all(
    backend: DockerBackend, tasks: Sequence[Task], *, registry: str | None, jobs: int, as_json: bool
) -> int:
    """Each by itself: one that fails does not keep the others from being sent."""
    template = registry_template(registry)
    backend.check()  # one clear line, before the work is dealt out

    def work(task: Task) -> dict[str, Any]:
        def say(line: str) -> None:
            sys.stderr.write(printable(f"{task.label}: {line}") + "\n")

        try:
            name, digest = push_task(backend, task, template, say)
        except CooperBenchError as error:
            say(f"failed: {error}")
            return {"task": task.label, "error": str(error)}
        say(f"pushed: {name} {digest}")
        return {"task": task.label, "image": name, "digest": digest}

    with ThreadPoolExecutor(jobs, thread_name_prefix="push") as pool:
        done = list(pool.map(work, tasks))
    failed = sum(1 for row in done if "error" in row)
    if as_json:
        sys.stdout.write(json.dumps({"image_template": template, "images": done}, indent=2) + "\n")
    else:
        sys.stdout.write(f"{len(done) - failed} of {plural(len(done), 'image')} pushed\n")
        sys.stdout.write(f"use them: --image-template '{template}'\n")
    return 1 if failed else 0


def registry_template(registry: str | None) -> str:
    """How images are called there. Without a registry it is Artifact Registry's, in the project that is set up."""
    if registry is None:
        from cooperbench.backends.gcp.settings import read_settings

        try:
            settings = read_settings()
        except UserError:
            raise UserError(
                "where to? --registry HOST/PATH, or set up a project: cooperbench config gcp"
            ) from None
        registry = f"{settings.region}-docker.pkg.dev/{settings.project.replace(':', '/')}/cooperbench"
    registry = registry.rstrip("/")
    if not _REGISTRY.fullmatch(registry):
        raise UserError(
            f"--registry {registry!r} is not HOST/PATH, e.g. us-central1-docker.pkg.dev/my-project/cooperbench"
        )
    return f"{registry}/{{repo}}:task{{task_id}}"


def push_task(
    backend: DockerBackend, task: Task, template: str, say: Callable[[str], None]
) -> tuple[str, str]:
    """The image's name over there and its digest."""
    from cooperbench.backends.gcp.engine import sign_in

    found = backend.images.present(task)
    if found is None:
        raise UserError(
            f"there is no image {backend.images.names_of(task)[0]} here: cooperbench images build"
        )
    name = image_name(task, template)
    repository, _, tag = name.rpartition(":")
    say(f"pushing {name}")
    problem, digest = "", ""
    api = backend.engine.api
    with faults(f"pushing {name}", backend.engine.client):
        api.tag(found.image_id, repository, tag)
        sign_in(api, [name])
        for event in api.push(repository, tag=tag, stream=True, decode=True):
            problem = problem or str(event.get("error") or "")
            digest = str((event.get("aux") or {}).get("Digest") or digest)
    if problem:
        raise _refused(name, problem)
    return name, digest


def _refused(name: str, problem: str) -> CooperBenchError:
    words = printable(re.sub(r"\s+", " ", problem))[:300]
    if re.search(r"denied|unauthorized|authentication|no basic auth|forbidden", words, re.IGNORECASE):
        host = name.partition("/")[0]
        mend = f"gcloud auth configure-docker {host}" if host.endswith("pkg.dev") else f"docker login {host}"
        return UserError(f"pushing {name}: the registry refuses it ({words}): {mend}")
    if re.search(r"not found|name unknown", words, re.IGNORECASE) and "pkg.dev" in name:
        mend = "gcloud artifacts repositories create cooperbench --repository-format=docker --location=REGION"
        return UserError(f"pushing {name}: there is no such repository ({words}): {mend}")
    return InfraError(f"pushing {name}: {words}")
