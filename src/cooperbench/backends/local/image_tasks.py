"""Tasks that run in their published image: where it comes from, and the layers made from it.

`<cache>/images/tasks/<key>/` has the layers of one image: `evaluation`, the repository without
commits later than HEAD (missing where there are none), `agent`, the repository without history,
and `base/base.git`, the agent's base commit. They are what changed in a sandbox, and are stacked
on the image's own layers.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import msgspec

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.engine import save_from_engine
from cooperbench.backends.images.model import NoSuchImage
from cooperbench.backends.images.pull import NoProgress, Progress, pull_image
from cooperbench.backends.images.registry import RegistryUnavailable
from cooperbench.backends.images.settings import ImageSettings
from cooperbench.backends.images.store import (
    ImageStore,
    PreparedImage,
    StoredImage,
    lock_shared,
    read_prepared,
)
from cooperbench.backends.local.image_root import make_image_root, missing_tool
from cooperbench.backends.local.rootfs import Content, ImageRoot
from cooperbench.backends.local.sandbox import LocalSandbox
from cooperbench.backends.ownership import locked
from cooperbench.dataset import image_names
from cooperbench.dataset.discovery import is_demo_task
from cooperbench.dataset.download import DEFAULT_DATASET_ID, MARKER
from cooperbench.errors import SandboxError, UserError
from cooperbench.models import Image, Task
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import SCRIPT_SECONDS
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.storage import read_json
from cooperbench.temporary import owned_prefix, remove_tree

Pull = Literal["auto", "missing", "always", "never"]
MakeSandbox = Callable[[Content, SandboxOptions, int], LocalSandbox]
PREFIX = "image/"
"""Start of the refs of prepared images."""
_AGENT_SUFFIX = "+agent"
_FORMAT = 1
"""Increase it when the layers change: older ones are then made again."""
_BASE_MOUNT = "/cooperbench/base"


class ImageTasks:
    """The images of tasks in one cache."""

    def __init__(
        self, cache_dir: Path, settings: ImageSettings, template: str | None, pull: Pull
    ) -> None:
        """Keep the settings."""
        self.store = ImageStore(cache_dir / "images", settings.max_layer_gb * 10**9)
        self._settings = settings
        self._template = template
        self._pull = pull
        self._locks: dict[str, int] = {}
        """Descriptors of the locks on images in use, which keep others from removing them."""
        self._locks_lock = threading.Lock()

    # Where the image of a task comes from.

    def names_of(self, task: Task) -> list[str]:
        """Return the names of a task's image: by the template in force, else by both known ones."""
        template = self._template or os.environ.get(image_names.ENVIRONMENT_VARIABLE)
        templates = [image_names.DEFAULT_TEMPLATE, image_names.PUBLISHED_TEMPLATE]
        if template:
            templates = [template]
        return [image_names.image_name(task, name) for name in templates]

    def present(self, task: Task) -> StoredImage | None:
        """Return the image of a task that the store has."""
        for name in self.names_of(task):
            image = self.store.find(name)
            if image is not None:
                return image
        return None

    def provide(self, task: Task) -> StoredImage | None:
        """Return the task's image, pulled if necessary; None if its setup.sh prepares it."""
        present = self.present(task)
        if present is not None and self._pull != "always":
            return present
        if is_demo_task(task) or not self._may_pull(task):
            return present
        return self.pull(task, NoProgress())

    def pull(self, task: Task, progress: Progress) -> StoredImage:
        """Pull the first of the task's names that a registry has, the published one first."""
        names = self.names_of(task)
        reason = ""
        for name in reversed(names):
            try:
                return pull_image(self.store, name, self._settings, progress)
            except NoSuchImage as error:
                reason = str(error)
            except RegistryUnavailable as error:
                saved = self._import_from_engine(names, progress)
                if saved is not None:
                    return saved
                raise UserError(
                    f"{task.label}: {error}. On a machine that reaches it: cooperbench images"
                    " export FILE --backend local; here: cooperbench images import FILE"
                ) from error
        saved = self._import_from_engine(names, progress)
        if saved is not None:
            return saved
        raise NoSuchImage(
            f"{task.label} has no published image ({reason}). Build it where Docker is (cooperbench"
            f" images build; docker save {names[0]} -o FILE) and import it here"
            " (cooperbench images import FILE)"
        )

    def _import_from_engine(self, names: list[str], progress: Progress) -> StoredImage | None:
        """Return the image that Docker or Podman has on this machine; None if they do not."""
        for name in names:
            with self.store.temporary_folder() as folder:
                path = Path(folder, "image.tar")
                if save_from_engine(name, path):
                    return import_images(self.store, path, name, progress)[0]
        return None

    def _may_pull(self, task: Task) -> bool:
        """Return whether a task that is not in the store has to be in a registry."""
        has_setup = task.setup_script.is_file()
        if self._pull == "never":
            if has_setup:
                return False
            raise UserError(
                f"{task.label} has no setup.sh and its image is not here: cooperbench images"
                " import FILE, or run without --pull never"
            )
        if not has_setup:
            return True
        if self._pull == "auto":
            return _is_public(task)
        return task.dockerfile.is_file()

    # The layers that are made from it.

    def prepare(self, task: Task, image: StoredImage, make_sandbox: MakeSandbox) -> Image:
        """Make an image's layers for agents and test runs, unless they exist."""
        key = _task_key(task, image)
        folder = self.store.task_folder(key)
        with self._locked(f"task-{key}"):
            if not folder.is_dir():
                self._make_layers(task, image, folder, make_sandbox)
        ref = f"{PREFIX}{task.repo}:task{task.task_id}@{key}"
        return Image(
            ref=ref, agent_ref=ref + _AGENT_SUFFIX, digest=image.digest, evaluation_ref=ref
        )

    def _make_layers(
        self, task: Task, image: StoredImage, folder: Path, make_sandbox: MakeSandbox
    ) -> None:
        options = SandboxOptions(purpose="setup", labels={"task": task.label})
        seconds = 2 * SCRIPT_SECONDS + 120
        content = Content(image=self.image_root(image))
        self.store.remove_leftovers()
        staging = Path(mkdtemp(prefix=owned_prefix("task"), dir=folder.parent))
        try:
            (staging / "base").mkdir()
            sandbox = make_sandbox(content, options, seconds)
            try:
                has_git = sandbox.run(["sh", "-c", "command -v git"], timeout_seconds=60, cwd="/")
                if has_git.returncode:
                    raise missing_tool(image, "git")
                if sandbox.run_script("strip_future_commits.sh"):
                    sandbox.keep_files(staging / "evaluation")
            finally:
                sandbox.terminate()
            agent_content = Content(
                layers=_existing(staging / "evaluation"),
                writable=((staging / "base", _BASE_MOUNT),),
                image=content.image,
            )
            sandbox = make_sandbox(agent_content, options, seconds)
            try:
                sandbox.run_script("strip_history.sh", f"{_BASE_MOUNT}/base.git")
                sandbox.keep_files(staging / "agent")
            finally:
                sandbox.terminate()
            (staging / "prepared.json").write_bytes(msgspec.json.encode(PreparedImage(image=image)))
            staging.rename(folder)
        finally:
            remove_tree(staging)

    # What sandboxes begin with.

    def content(self, ref: str) -> Content:
        """Return the content of a sandbox of a prepared image; SandboxError if it is gone."""
        base_ref = ref.removesuffix(_AGENT_SUFFIX)
        folder = self.store.task_folder(base_ref.rpartition("@")[2])
        prepared = read_prepared(folder)
        if prepared is None:
            raise SandboxError(f"{ref} is no longer in {self.store.folder}: prepare it again")
        layers = _existing(folder / "evaluation")
        base_git = None
        if ref.endswith(_AGENT_SUFFIX):
            layers = (folder / "agent", *layers)
            base_git = folder / "base/base.git"
        return Content(layers=layers, base_git=base_git, image=self.image_root(prepared.image))

    def image_root(self, image: StoredImage) -> ImageRoot:
        """Return an image as the system of sandboxes, and keep it from being removed."""
        self._hold(image)
        layers = self.store.layer_folders(image)
        if not layers or not all(layer.is_dir() for layer in layers):
            raise SandboxError(f"the image {image.name} is no longer in {self.store.folder}")
        return make_image_root(image, layers)

    def _hold(self, image: StoredImage) -> None:
        with self._locks_lock:
            if image.name not in self._locks:
                path = self.store.use_lock(image.name)
                self._locks[image.name] = lock_shared(path)
                os.utime(path)

    def close(self) -> None:
        """Let others remove the images."""
        with self._locks_lock:
            while self._locks:
                os.close(self._locks.popitem()[1])

    def _locked(self, name: str) -> AbstractContextManager[None]:
        return locked(self.store.folder / "locks" / name)


def _is_public(task: Task) -> bool:
    """Return whether a task was downloaded with the public dataset, whose images are published."""
    marker = read_json(task.path.parent.parent / MARKER) or {}
    return marker.get("dataset_id") == DEFAULT_DATASET_ID


def _task_key(task: Task, image: StoredImage) -> str:
    scripts = [sandbox_script(name) for name in ("strip_future_commits.sh", "strip_history.sh")]
    ingredients = [str(_FORMAT), task.label, image.name, image.digest, image.image_id, *scripts]
    return hashlib.sha256("\n".join(ingredients).encode()).hexdigest()[:16]


def _existing(folder: Path) -> tuple[Path, ...]:
    return (folder,) if folder.is_dir() else ()
