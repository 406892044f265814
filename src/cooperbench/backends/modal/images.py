"""A task's images at Modal: pulled by digest or built from its Dockerfile, the one for agents, and snapshots.

Modal builds images from definitions and keeps what it built, so that asking for the same again costs next to nothing.
The agents' image is one more layer that replaces the repository's history by one commit, that for test runs one that
removes later commits: a sandbox cannot see the layers below. Snapshots have no names at Modal: their ids are kept in
the cache folder, a file each.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cooperbench.backends.image_digest import resolve_digest
from cooperbench.backends.modal.connection import Connection, Gone
from cooperbench.dataset.discovery import is_demo_task
from cooperbench.dataset.image_names import image_name
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import REPO_DIR, Image, Task
from cooperbench.sandbox import sandbox_script
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import modal

    from cooperbench.backends.modal.settings import ModalSettings

_BASE_GIT_DIR = "/cooperbench/base.git"
_HIDDEN = ["feature[0-9]*", "combined.patch", "__pycache__"]
"""Never part of a build: no image may hold what agents must not see."""
_BUILD_SECONDS = 2 * 3600.0
_NO_ENTRYPOINT = "ENTRYPOINT []"
_RATE_LIMIT = re.compile(r"toomanyrequests|too many requests|rate limit", re.IGNORECASE)
_NO_ACCESS = re.compile(
    r"unauthorized|authentication required|no basic auth|denied|forbidden", re.IGNORECASE
)
_NOT_THERE = re.compile(r"does not exist|manifest unknown|name unknown|not found", re.IGNORECASE)
"""Docker Hub says "denied" also of what is not there."""


class ImageStore:
    """The images of one account; each is made once."""

    def __init__(self, connection: Connection, settings: ModalSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._known: dict[str, modal.Image] = {}

    def get(self, reference: str) -> modal.Image:
        """For a sandbox: `im-…` of Modal's, or a name that a registry knows. The same for the whole session."""
        import modal

        if reference not in self._known:
            self._known[reference] = (
                modal.Image.from_id(reference, client=self.connection.client)
                if re.fullmatch(r"im-\w+", reference)
                else self._pull(reference, _pinned(reference)[0])
            )
        return self._known[reference]

    def provide(self, task: Task) -> Image:
        """The task's image and those made of it; the digest is the registry's, else Modal's id of the image."""
        source, digest = self._source(task)
        judged, agents = (
            self._built(
                source.dockerfile_commands(_run(script)), f"{task.label}: removing {what}"
            ).object_id
            for script, what in (
                ("strip_future_commits.sh", "later commits"),
                ("strip_history.sh", "the history"),
            )
        )
        return Image(source.object_id, agents, digest or source.object_id, judged)

    def find_snapshot(self, path: Path) -> str | None:
        """The id in the file of a snapshot, if Modal still has it."""
        found = str((read_json(path) or {}).get("image") or "")
        if found:
            with suppress(Gone, UserError):  # expired, deleted, or another account's
                self._built(self.get(found), f"looking for the snapshot {found}")
                return found
        return None

    def _source(self, task: Task) -> tuple[modal.Image, str]:
        """The image as published or built, and its digest if it has one."""
        name, reason = image_name(task, self._settings.image_template), ""
        if self._settings.images != "build" and not is_demo_task(task):
            reference, digest = _pinned(name)
            try:
                return self._pull(name, reference), digest
            except _NotPulled as error:
                if (
                    self._settings.images == "registry" or digest
                ):  # with a digest the registry has it
                    raise
                reason = str(error)
        if not task.dockerfile.is_file():
            why = reason or "it was not asked for"
            raise UserError(
                f"{task.label}: no image {name} ({why}), and no Dockerfile to build one from"
            )
        return self._from_dockerfile(task), ""

    def _pull(self, name: str, reference: str) -> modal.Image:
        import modal

        secret_name = self._settings.registry_secret
        secret = modal.Secret.from_name(secret_name) if secret_name else None
        image = modal.Image.from_registry(
            reference, secret, setup_dockerfile_commands=[_NO_ENTRYPOINT]
        )
        try:
            return self._built(image, f"pulling {name}")
        except UserError as error:
            if not isinstance(error.__cause__, modal.exception.ImageBuildError):
                raise
            raise _not_pulled(str(error)) from error

    def _from_dockerfile(self, task: Task) -> modal.Image:
        import modal

        image = modal.Image.from_dockerfile(
            task.dockerfile,
            context_dir=task.path,
            ignore=_HIDDEN,
            build_args=dict(self._settings.build_args),
        )
        return self._built(image.dockerfile_commands(_NO_ENTRYPOINT), f"building {task.label}")

    def _built(self, image: modal.Image, doing: str) -> modal.Image:
        return self.connection.create(
            doing, lambda: image.build.aio(self.connection.app), _BUILD_SECONDS
        )


class _NotPulled(UserError):
    """There is no such image, or it is not usable. Another one may be built instead."""


def _not_pulled(problem: str) -> CooperBenchError:
    """Modal gives the registry's words alone. What a secret or patience would help is never replaced by a build."""
    if _RATE_LIMIT.search(problem):
        remedy = (
            "try later, or set COOPERBENCH_MODAL_REGISTRY_SECRET or COOPERBENCH_MODAL_IMAGES=build"
        )
        return InfraError(f"the registry's rate limit is reached: {remedy}; {problem}")
    if _NO_ACCESS.search(problem) and not _NOT_THERE.search(problem):
        remedy = "set COOPERBENCH_MODAL_REGISTRY_SECRET, or COOPERBENCH_MODAL_IMAGES=build"
        return UserError(f"the registry wants other credentials: {remedy}; {problem}")
    return _NotPulled(problem)


def _run(script: str) -> str:
    """The line of a Dockerfile."""
    text = base64.b64encode(sandbox_script(script).encode()).decode("ascii")
    return f'RUN bash -c "$(echo {text} | base64 -d)" {script} {REPO_DIR} {_BASE_GIT_DIR}'


def snapshot_file(task: Task, key: str) -> Path:
    return _snapshots_dir() / f"{task.repo}.task{task.task_id}.{key}.json"


def snapshot_files(tasks: set[str] | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Of these tasks or of all: each file, and what is in it (`task`, `image`)."""
    for path in sorted(_snapshots_dir().glob("*.json")):
        content = read_json(path) or {}
        if tasks is None or content.get("task") in tasks:
            yield path, content


def _snapshots_dir() -> Path:
    return default_cache_dir() / "modal" / "snapshots"


def _pinned(name: str) -> tuple[str, str]:
    """A name of a registry with its digest, and the digest; without one where the registry does not tell it."""
    if "@" in name:
        return name, name.partition("@")[2]
    try:
        digest = resolve_digest(name)
    except CooperBenchError:
        return name, ""
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    return f"{repository}@{digest}", digest
