"""A task's images at Modal: pulled by digest or built from its Dockerfile, and snapshots.

Modal builds images from definitions and caches them, so building the same image again is cheap. The
image for agents has one more layer, which replaces the repository's history by a single commit; the
image for test runs has a layer that removes future commits. A sandbox cannot see the layers below.
Snapshots have no names at Modal, so their ids are stored in the cache folder, one file each.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

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
"""Files that are never part of a build context, because agents must not see them."""
_BUILD_SECONDS = 2 * 3600.0
_NO_ENTRYPOINT = "ENTRYPOINT []"
_RATE_LIMIT = re.compile(r"toomanyrequests|too many requests|rate limit", re.IGNORECASE)
_NO_ACCESS = re.compile(
    r"unauthorized|authentication required|no basic auth|denied|forbidden", re.IGNORECASE
)
_NOT_THERE = re.compile(r"does not exist|manifest unknown|name unknown|not found", re.IGNORECASE)
"""Checked as well, because Docker Hub answers "denied" for images that do not exist."""


class ImageStore:
    """The images of one account; each is built once."""

    def __init__(self, connection: Connection, settings: ModalSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._known: dict[str, modal.Image] = {}

    def get(self, reference: str) -> modal.Image:
        """Return the image with an id of Modal (`im-…`) or a registry name."""
        import modal

        if reference not in self._known:
            if re.fullmatch(r"im-\w+", reference):
                image = modal.Image.from_id(reference, client=self.connection.client)
            else:
                image = self._pull(reference, _pin(reference).name)
            self._known[reference] = image
        return self._known[reference]

    def provide(self, task: Task) -> Image:
        """Return the task's image and those derived from it.

        The digest is that of the registry, else Modal's image id.
        """
        source, digest = self._source(task)
        for_tests = self._build(
            source.dockerfile_commands(_run_line("strip_future_commits.sh")),
            f"{task.label}: removing future commits",
        )
        for_agents = self._build(
            source.dockerfile_commands(_run_line("strip_history.sh")),
            f"{task.label}: removing the history",
        )
        return Image(
            source.object_id,
            for_agents.object_id,
            digest or source.object_id,
            for_tests.object_id,
        )

    def find_snapshot(self, path: Path) -> str | None:
        """Return the image id in a snapshot's file, if Modal still has that image."""
        content = read_json(path) or {}
        image_id = str(content.get("image") or "")
        if not image_id:
            return None
        with suppress(Gone, UserError):  # expired, deleted, or of another account
            self._build(self.get(image_id), f"looking for the snapshot {image_id}")
            return image_id
        return None

    def _source(self, task: Task) -> tuple[modal.Image, str]:
        """Return the published or built image, and its digest if it has one."""
        name = image_name(task, self._settings.image_template)
        reason = "it was not pulled"
        if self._settings.images != "build" and not is_demo_task(task):
            pinned = _pin(name)
            try:
                return self._pull(name, pinned.name), pinned.digest
            except _NotPulled as error:
                # A registry that told the digest has the image.
                if self._settings.images == "registry" or pinned.digest:
                    raise
                reason = str(error)
        if not task.dockerfile.is_file():
            raise UserError(
                f"{task.label}: no image {name} ({reason}), and no Dockerfile to build one from"
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
            return self._build(image, f"pulling {name}")
        except UserError as error:
            if not isinstance(error.__cause__, modal.exception.ImageBuildError):
                raise
            raise _pull_error(str(error)) from error

    def _from_dockerfile(self, task: Task) -> modal.Image:
        import modal

        image = modal.Image.from_dockerfile(
            task.dockerfile,
            context_dir=task.path,
            ignore=_HIDDEN,
            build_args=dict(self._settings.build_args),
        )
        return self._build(image.dockerfile_commands(_NO_ENTRYPOINT), f"building {task.label}")

    def _build(self, image: modal.Image, doing: str) -> modal.Image:
        return self.connection.create(
            doing, lambda: image.build.aio(self.connection.app), _BUILD_SECONDS
        )


class _NotPulled(UserError):
    """An image does not exist or is not usable. It may be built from a Dockerfile instead."""


def _pull_error(problem: str) -> CooperBenchError:
    """Classify a failed pull by the registry's message, which is all that Modal reports.

    If credentials or waiting would help, the image is not built instead.
    """
    if _RATE_LIMIT.search(problem):
        remedy = (
            "try later, or set COOPERBENCH_MODAL_REGISTRY_SECRET or COOPERBENCH_MODAL_IMAGES=build"
        )
        return InfraError(f"the registry's rate limit is reached: {remedy}; {problem}")
    if _NO_ACCESS.search(problem) and not _NOT_THERE.search(problem):
        remedy = "set COOPERBENCH_MODAL_REGISTRY_SECRET, or COOPERBENCH_MODAL_IMAGES=build"
        return UserError(f"the registry requires other credentials: {remedy}; {problem}")
    return _NotPulled(problem)


def _run_line(script: str) -> str:
    """Return the line of a Dockerfile that runs one of our scripts."""
    text = base64.b64encode(sandbox_script(script).encode()).decode("ascii")
    return f'RUN bash -c "$(echo {text} | base64 -d)" {script} {REPO_DIR} {_BASE_GIT_DIR}'


def snapshot_file(task: Task, key: str) -> Path:
    """Return the path of the file with a snapshot's image id."""
    return _snapshots_dir() / f"{task.repo}.task{task.task_id}.{key}.json"


class SnapshotFile(NamedTuple):
    """A file in the cache folder that names a snapshot."""

    path: Path
    task: str
    image: str


def snapshot_files(tasks: set[str] | None) -> Iterator[SnapshotFile]:
    """Yield the snapshots of these tasks (None: of all tasks)."""
    for path in sorted(_snapshots_dir().glob("*.json")):
        content = read_json(path) or {}
        if tasks is None or content.get("task") in tasks:
            yield SnapshotFile(path, str(content.get("task")), str(content.get("image")))


def _snapshots_dir() -> Path:
    return default_cache_dir() / "modal" / "snapshots"


class _PinnedName(NamedTuple):
    """The name of an image in a registry, with its digest if that is known."""

    name: str
    digest: str


def _pin(name: str) -> _PinnedName:
    """Add the digest to an image's name, unless the registry does not tell it."""
    if "@" in name:
        return _PinnedName(name, name.partition("@")[2])
    try:
        digest = resolve_digest(name)
    except CooperBenchError:
        return _PinnedName(name, "")
    has_tag = ":" in name.rpartition("/")[2]
    repository = name.rpartition(":")[0] if has_tag else name
    return _PinnedName(f"{repository}@{digest}", digest)
