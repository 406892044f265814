"""A task's images: found, pulled or built, and the ones made from it, each once, whoever asks for it.

The image that agents get is the task's with the repository's history replaced by one commit, in a layer on top: what
lies below cannot be seen from inside a container. It is made once for each content of the task's image, kept in the
engine, and removed by `cooperbench images clean`, as are those with what a task's runner installs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.containers import CONTAINER_LABELS
from cooperbench.backends.docker.engine import NotThere, translated
from cooperbench.backends.docker.sandbox import lacks_tool
from cooperbench.dataset.discovery import demo_dir
from cooperbench.dataset.images import (
    DEFAULT_TEMPLATE,
    ENVIRONMENT_VARIABLE,
    PUBLISHED_TEMPLATE,
    image_name,
    image_template,
)
from cooperbench.errors import CooperBenchError, InfraError, SandboxError, UserError
from cooperbench.sandbox import scrub_script
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.sandbox import DockerSandbox
    from cooperbench.backends.docker.settings import DockerSettings
    from cooperbench.models import Task

    Say = Callable[[str], None]
    MakeSandbox = Callable[[str, int, str, SandboxOptions], DockerSandbox]

TASK = "cooperbench.task"
CONTEXT = "cooperbench.context"
"""On images that we built: what from."""
PREPARED = "cooperbench.prepared"
"""On images without history: the id of the image that they were made from."""
INSTALLS = "cooperbench.installs"
"""On images with what a runner installs: the id of the image that they were made from."""
_REPO_DIR = "/workspace/repo"
_BASE_GIT_DIR = "/cooperbench/base.git"
_SCRUB_SECONDS = 900
_FORMAT = 2

_HIDDEN = re.compile(r"feature[0-9]+|combined\.patch")
"""Never part of a build: no image may hold what agents must not see."""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
_UNREACHABLE = (
    "no such host|dial tcp|lookup .*|i/o timeout|connection refused|network is unreachable|context deadline"
)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)", re.IGNORECASE | re.MULTILINE)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_SECONDS = 2 * 3600


@dataclass(frozen=True)
class EngineImage:
    """An image that the engine has."""

    name: str
    image_id: str
    digest: str
    """Of the registry where there is one, else the image's id."""
    path: str
    """The PATH that it sets."""
    user: str
    workdir: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...]
    labels: dict[str, str]


def say_nothing(line: str) -> None:
    """For those who want no progress."""


class ImageStore:
    """The images of one engine."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._known: dict[str, EngineImage] = {}
        """By name; sandboxes stick to this content, whatever the name comes to mean."""
        self._unreachable = ""

    def find(self, name: str) -> EngineImage | None:
        """What the engine has under a name or id, now."""
        try:
            with self._engine.faults(f"looking for the image {name}"):
                data: dict[str, Any] = self._engine.api.inspect_image(name)
        except NotThere:
            return None
        config = data.get("Config") or {}
        variables = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
        digests = [digest.partition("@")[2] for digest in data.get("RepoDigests") or []]
        image_id = str(data["Id"])
        image_id = image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"
        return EngineImage(
            name=name,
            image_id=image_id,
            # Podman makes up a digest for local images too: that of the manifest, as good as any.
            digest=digests[0] if digests else image_id,
            path=variables.get("PATH") or _DEFAULT_PATH,
            user=str(config.get("User") or ""),
            workdir=str(config.get("WorkingDir") or "/"),
            command=tuple(config.get("Cmd") or ()),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            labels=dict(config.get("Labels") or {}),
        )

    def _find_made(self, name: str) -> EngineImage:
        if found := self.find(name):
            return found
        raise InfraError(f"the image {name} is not there, although it was just pulled or made")

    def get(self, name: str) -> EngineImage:
        """An image for a sandbox: the same for the whole session, pulled if it is not there."""
        if known := self._known.get(name):
            return known
        is_id = name.startswith("sha256:")
        found = self.find(name) if self._settings.pull != "always" or is_id else None
        if found is None:
            if self._settings.pull == "never" or is_id:
                raise UserError(f"there is no image {name}; get it: {self._engine.client} pull {name}")
            try:
                self.pull(name)
            except (InfraError, UserError) as error:
                raise UserError(
                    f"there is no image {name} and it cannot be pulled ({error});"
                    f" get it: {self._engine.client} pull {name}, or cooperbench images build"
                ) from error
            found = self._find_made(name)
        self.remember(found)
        return found

    def remember(self, found: EngineImage) -> None:
        self._known[found.name] = found

    def names_of(self, task: Task) -> list[str]:
        """What the task's image may be called: by the template that was set, else by both known ones."""
        template = self._settings.image_template or os.environ.get(ENVIRONMENT_VARIABLE)
        if template:
            return [image_name(task, image_template(template))]
        return [image_name(task, known) for known in (DEFAULT_TEMPLATE, PUBLISHED_TEMPLATE)]

    def present(self, task: Task) -> EngineImage | None:
        """The task's image if the engine has it and it is not one that we built from other files."""
        for name in self.names_of(task):
            found = self.find(name)
            if found is not None and found.labels.get(CONTEXT, "") in ("", self.context_key(task)):
                return found
        return None

    def provide(self, task: Task, say: Say = say_nothing) -> EngineImage:
        """The task's image: present, else pulled, else built. `pull="always"` asks the registry first."""
        if self._settings.pull != "always" and (found := self.present(task)):
            return found
        reason = "pulling is switched off"
        if self._settings.pull != "never" and not _is_demo(task):
            try:
                return self.pull_task(task, say)
            except CooperBenchError as error:
                reason = str(error)
        if self._settings.pull == "always" and (found := self.present(task)):
            return found
        if not task.dockerfile.is_file():
            names = " nor ".join(self.names_of(task))
            raise UserError(
                f"{task.label}: there is no image {names} ({reason}), and no Dockerfile to build one from"
            )
        return self.build(task, say)

    def pull_task(self, task: Task, say: Say = say_nothing) -> EngineImage:
        """The first of the task's names that a registry has; the published one is tried first."""
        if _is_demo(task):
            raise UserError(
                f"{task.label} belongs to the demo, whose images are in no registry: cooperbench images build"
            )
        reasons = []
        for name in reversed(self.names_of(task)):
            say(f"pulling {name}")
            try:
                self.pull(name)
            except InfraError as error:
                reasons.append(str(error))
                continue
            if found := self.find(name):
                return found
        raise InfraError("; ".join(reasons))

    def pull(self, name: str) -> None:
        if self._unreachable:
            raise InfraError(f"pulling {name}: {self._unreachable}")
        full = f"docker.io/{name}" if self._engine.podman and not _has_registry(name) else name
        last: dict[str, Any] = {}
        try:
            with self._engine.faults(f"pulling {name}"):
                for event in self._engine.api.pull(full, stream=True, decode=True):
                    last = event if "error" in event else last
        except InfraError as error:
            if re.search(_UNREACHABLE, str(error)):
                self._unreachable = "the registry cannot be reached"
            raise
        if last:
            raise InfraError(f"pulling {name}: {printable(str(last['error']))[:300]}")

    def build(self, task: Task, say: Say = say_nothing) -> EngineImage:
        """Build the task's Dockerfile."""
        name = self.names_of(task)[0]
        if not task.dockerfile.is_file():
            raise UserError(f"{task.label} has no Dockerfile to build {name} from")
        say(f"building {name}")
        return self._engine.changing_images(lambda: self._build(task, name))

    def _build(self, task: Task, name: str) -> EngineImage:
        lines: list[str] = []
        problem = ""
        with self._engine.faults(f"building {name}"):
            events = self._engine.api.build(
                fileobj=_context(task),
                custom_context=True,
                tag=name,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=_BUILD_SECONDS,
                labels={CONTEXT: self.context_key(task), TASK: task.label},
                buildargs={**_proxies(), **self._settings.build_args},
                # Without a bridge the engine has no network to build in but the host's.
                network_mode=None if self._engine.podman or self._has_bridge() else "host",
            )
            for event in events:
                problem = problem or str(event.get("error") or "")
                lines += str(event.get("stream") or "").splitlines()
        if problem:
            raise self._build_failed(task, name, problem, lines)
        return self._find_made(name)

    def _build_failed(self, task: Task, name: str, problem: str, lines: list[str]) -> UserError:
        """What the engine said, and the last words of the build."""
        client = self._engine.client
        error = translated(RuntimeError(problem), f"{task.label}: building {name} failed", client)
        if isinstance(error, UserError):
            return error
        if re.search(_UNREACHABLE, problem):
            bases = ", ".join(_FROM.findall(task.dockerfile.read_text("utf-8", "replace")))
            return UserError(
                f"{error}; if no registry can be reached, {client} pull or {client} load what its Dockerfile starts"
                f" from ({printable(bases)}); what is an argument there can be set: COOPERBENCH_BUILD_ARGS=NAME=…"
            )
        said = [line for line in lines if line.strip() and not line.startswith("Removing intermediate")]
        last = f" after: {printable(said[-1].strip())[:200]}" if said else ""
        return UserError(f"{error}{last} (see it with: {client} build {task.path})")

    def without_history(
        self, task: Task, source: EngineImage, make_sandbox: MakeSandbox, say: Say
    ) -> EngineImage:
        """The image for agents, made now if it is not there yet."""
        name = prepared_name(task, source)
        if found := self.find(name):
            return found
        say(f"removing the history from {source.name}")
        options = SandboxOptions(purpose="setup", labels={"task": task.label})
        sandbox = make_sandbox(source.name, _SCRUB_SECONDS + 120, _REPO_DIR, options)
        try:
            if sandbox.run(["sh", "-c", "command -v git"], timeout_seconds=60, cwd="/").returncode:
                raise lacks_tool(source.name, "git is missing")
            command = ["bash", "-c", scrub_script().decode(), "scrub", _REPO_DIR, _BASE_GIT_DIR]
            done = sandbox.run(command, timeout_seconds=_SCRUB_SECONDS, cwd="/")
            if done.returncode:
                words = (done.stderr_read().strip() or done.stdout_read().strip()).rpartition("\n")[2]
                raise SandboxError(f"{source.name}: its history cannot be removed: {printable(words)[:300]}")
            return self.commit(sandbox, name, task, source, PREPARED)
        finally:
            sandbox.terminate()

    def commit(
        self, sandbox: DockerSandbox, name: str, task: Task, source: EngineImage, kind: str
    ) -> EngineImage:
        """A sandbox's files as an image of a `kind` (a label), otherwise configured like its `source`."""
        repository, _, tag = name.partition(":")

        def commit() -> None:
            with self._engine.faults(f"keeping {name}"):
                changes = _changes(task, source, kind)
                self._engine.api.commit(sandbox.container, repository, tag, changes=changes)

        self._engine.changing_images(commit)
        return self._find_made(name)

    def remove_made(self, tasks: set[str] | None, *, built: bool) -> list[str]:
        """Remove the images that we made, of some tasks or of all: layers on top of theirs, if asked those we built."""
        removed: list[str] = []

        def remove() -> None:
            everything = self._everything()
            # Layers first: the others are below them.
            for kind in (PREPARED, INSTALLS, CONTEXT) if built else (PREPARED, INSTALLS):
                for image in everything:
                    labels = image.get("Labels") or {}
                    if not labels.get(kind) or (tasks is not None and labels.get(TASK) not in tasks):
                        continue
                    for name in _tags(image) or [image["Id"]]:
                        with suppress(NotThere), self._engine.faults(f"removing {name}"):
                            self._engine.api.remove_image(name, force=True)
                            removed.append(name)

        self._engine.changing_images(remove)
        return removed

    def layers_with_installs(self, task: Task) -> list[str]:
        """The images with what the task's runner installs."""
        return sorted(
            name
            for image in self._everything()
            if (labels := image.get("Labels") or {}).get(INSTALLS) and labels.get(TASK) == task.label
            for name in _tags(image)
        )

    def _everything(self) -> list[dict[str, Any]]:
        with self._engine.faults("listing the images"):
            found: list[dict[str, Any]] = self._engine.api.images()
        return found

    def context_key(self, task: Task) -> str:
        """What identifies a build: the files in it. Not its arguments, which need not be at hand to use it."""
        return hashlib.sha256(_context(task).getvalue()).hexdigest()[:32]

    def _has_bridge(self) -> bool:
        return any(found["Name"] == "bridge" for found in self._engine.api.networks(names=["bridge"]))


def prepared_name(task: Task, source: EngineImage) -> str:
    made_of = f"{_FORMAT} {source.image_id}\n".encode() + scrub_script()
    return _name("cooperbench-prepared", task, hashlib.sha256(made_of).hexdigest()[:16])


def installs_name(task: Task, key: str) -> str:
    """Of the image with what a task's runner installs."""
    return _name("cooperbench-installs", task, key)


def _name(prefix: str, task: Task, key: str) -> str:
    return f"{prefix}/{task.repo.lower()}:task{task.task_id}-{key}"


def _changes(task: Task, source: EngineImage, kind: str) -> list[str]:
    """The task image's own configuration again: the sandbox's must not come with the files.

    Above all not its owner, or the containers that users make of the image would pass for leftovers.
    """
    labels = {**dict.fromkeys(CONTAINER_LABELS, ""), CONTEXT: "", TASK: task.label, kind: source.image_id}
    return [
        # One a line and without quotes, as Podman takes everything after the first = for the value.
        *(f"LABEL {name}={value}" for name, value in labels.items()),
        f"ENV PATH={source.path}",
        f"WORKDIR {source.workdir}",
        f"ENTRYPOINT {json.dumps(source.entrypoint)}",
        # An empty command would not replace the sandbox's.
        f"CMD {json.dumps(source.command or ['sh'])}",
    ]


def _tags(image: dict[str, Any]) -> list[str]:
    return [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]


def _is_demo(task: Task) -> bool:
    """The demo's tasks are in no registry; whoever took their names there is not us."""
    return task.path.resolve().is_relative_to(demo_dir().resolve())


def _has_registry(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def _proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}


def _context(task: Task) -> io.BytesIO:
    """The task's folder without what is hidden, the same bytes for the same content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(task.path.rglob("*")):
            name = path.relative_to(task.path)
            if "__pycache__" not in name.parts and not _HIDDEN.fullmatch(name.parts[0]):
                archive.add(path, name.as_posix(), recursive=False, filter=_as_in_a_checkout)
    packed.seek(0)
    return packed


def _as_in_a_checkout(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """What an installer made of owners and modes must not matter."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
    return entry
