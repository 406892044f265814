"""A task's image at Modal: pulled by digest or built from the task's Dockerfile, and the one for agents.

Modal builds images from definitions and keeps what it built, so that asking for the same again costs next to nothing.
The agents' image is one more layer that replaces the repository's history by one commit: a sandbox cannot see the
layers below.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from typing import TYPE_CHECKING

from cooperbench.backends.image_digest import resolve_digest
from cooperbench.dataset.discovery import demo_dir
from cooperbench.dataset.images import ENVIRONMENT_VARIABLE, PUBLISHED_TEMPLATE, image_name, image_template
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.models import REPO_DIR, Image
from cooperbench.sandbox import scrub_script

if TYPE_CHECKING:
    from pathlib import Path

    import modal

    from cooperbench.backends.modal.connection import Connection
    from cooperbench.backends.modal.settings import ModalSettings
    from cooperbench.models import Task

BASE_GIT_DIR = "/cooperbench/base.git"
_HIDDEN = re.compile(r"feature[0-9]+|combined\.patch|__pycache__")
"""Never part of a build: no image may hold what agents must not see."""
_BUILD_SECONDS = 2 * 3600.0
_NO_ENTRYPOINT = "ENTRYPOINT []"


class ImageStore:
    """The images of one account; each is made once."""

    def __init__(self, connection: Connection, settings: ModalSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, modal.Image] = {}

    def get(self, reference: str, *, public: bool = False) -> modal.Image:
        """For a sandbox: `im-…` of Modal's, or a name that a registry knows. The same for the whole session.

        `public`: pulled without the user's secret, which may be another registry's.
        """
        import modal

        with self._lock:
            known = self._known.get(reference)
        if known is not None:
            return known
        if re.fullmatch(r"im-\w+", reference):
            image = modal.Image.from_id(reference, client=self._connection.client)
        else:
            pulled = self._pulled(pinned(reference)[0], public=public)
            image = self._built(pulled, f"pulling {reference}")
        self._remember(reference, image)
        return image

    def provide(self, task: Task) -> Image:
        """The task's image, and the one without history that is made from it.

        Its digest is the registry's, else Modal's id of the image, which stands for its definition.
        """
        source, digest, note = self._source(task)
        agents = self._built(
            source.dockerfile_commands(scrub_command()), f"{task.label}: removing the history"
        )
        for image in (source, agents):
            self._remember(image.object_id, image)
        notes = (note,) if note else ()
        return Image(source.object_id, agents.object_id, digest or source.object_id, notes)

    def _source(self, task: Task) -> tuple[modal.Image, str, str]:
        """The image as published or built, its digest if it has one, and a note for the user."""
        # Without a template of the user's it is the published name, since that is the one that registries have.
        template = self._settings.image_template or os.environ.get(ENVIRONMENT_VARIABLE)
        name, reason = image_name(task, image_template(template or PUBLISHED_TEMPLATE)), ""
        if self._settings.images != "build" and not _is_ours(task):
            reference, digest = pinned(name)
            try:
                return self._built(self._pulled(reference), f"pulling {name}"), digest, ""
            except UserError as error:
                if self._settings.images == "registry" or not _is_about_the_image(error):
                    raise
                reason = str(error)
        if not task.dockerfile.is_file():
            why = f" ({reason})" if reason else ""
            raise UserError(
                f"{task.label}: there is no image {name}{why}, and no Dockerfile to build one from"
            )
        note = f"{name} could not be pulled; it was built from the task's Dockerfile" if reason else ""
        return self._built(self._from_dockerfile(task), f"building {task.label}"), "", note

    def _pulled(self, reference: str, *, public: bool = False) -> modal.Image:
        import modal

        named = "" if public else self._settings.registry_secret
        secret = modal.Secret.from_name(named) if named else None
        return modal.Image.from_registry(reference, secret, setup_dockerfile_commands=[_NO_ENTRYPOINT])

    def _from_dockerfile(self, task: Task) -> modal.Image:
        import modal

        image = modal.Image.from_dockerfile(
            task.dockerfile,
            context_dir=task.path,
            ignore=_is_hidden,
            build_args=dict(self._settings.build_args),
        )
        return image.dockerfile_commands(_NO_ENTRYPOINT)

    def _built(self, image: modal.Image, doing: str) -> modal.Image:
        return self._connection.call(doing, image.build.aio(self._connection.app), _BUILD_SECONDS)

    def _remember(self, reference: str, image: modal.Image) -> None:
        with self._lock:
            self._known[reference] = image


def scrub_command() -> str:
    """The layer of the agents' image."""
    script = base64.b64encode(scrub_script()).decode("ascii")
    return f'RUN bash -c "$(echo {script} | base64 -d)" scrub {REPO_DIR} {BASE_GIT_DIR}'


def pinned(name: str) -> tuple[str, str]:
    """A name of a registry with its digest, and the digest; without one where the registry does not tell it."""
    if "@" in name:
        return name, name.partition("@")[2]
    try:
        digest = resolve_digest(name)
    except CooperBenchError:
        return name, ""
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    return f"{repository}@{digest}", digest


def _is_hidden(path: Path) -> bool:
    return bool(path.parts) and bool(_HIDDEN.fullmatch(path.parts[0]))


def _is_about_the_image(error: UserError) -> bool:
    from modal.exception import ImageBuildError

    return isinstance(error.__cause__, ImageBuildError)


def _is_ours(task: Task) -> bool:
    """The demo's tasks: they are in no registry, and an image with their name there is not ours."""
    try:
        return task.path.resolve().is_relative_to(demo_dir().resolve())
    except UserError:
        return False
