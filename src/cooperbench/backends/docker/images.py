"""A task's images: found, pulled or built, and the ones made from it, each once.

The image that agents get is the task's with the repository's history replaced by one commit, in a layer on top: what
lies below cannot be seen from inside a container. The image for test runs is without later commits, where it has any.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cooperbench.backends.docker.engine import Engine, NotThere, translated
from cooperbench.backends.docker.sandbox import DockerSandbox, lacks_tool
from cooperbench.backends.docker.settings import DockerSettings
from cooperbench.backends.image_digest import has_registry
from cooperbench.dataset import image_names
from cooperbench.dataset.discovery import is_demo_task
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import REPO_DIR, Task
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.base_sandbox import SCRIPT_SECONDS
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.text import printable

Say = Callable[[str], None]
MakeSandbox = Callable[[str, int, str, SandboxOptions], DockerSandbox]

OWNER = "cooperbench.owner"
"""On containers, as are the next two."""
SESSION = "cooperbench.session"
PURPOSE = "cooperbench.purpose"
TASK = "cooperbench.task"
CONTEXT = "cooperbench.context"
"""On images that we built: what from."""
PREPARED = "cooperbench.prepared"
"""On images without history, for agents: the id of the image for test runs."""
JUDGED = "cooperbench.judged"
"""On images without later commits, for test runs: the id of the image that they were made from."""
DEPENDENCY_LAYER = "cooperbench.installs"
"""On images with what a runner installs: the id of the image that they were made from."""
_BASE_GIT_DIR = "/cooperbench/base.git"
_FORMAT = 2

_HIDDEN = re.compile(r"feature[0-9]+|combined\.patch")
"""Never part of a build: no image may hold what agents must not see."""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
_UNREACHABLE = "no such host|dial tcp|lookup .*|i/o timeout|connection refused|network is unreachable|context deadline"
_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)", re.IGNORECASE | re.MULTILINE)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_SECONDS = 2 * 3600
_NO_DOCKERFILE = "no Dockerfile to build an image from"


@dataclass(frozen=True)
class EngineImage:
    """An image that the engine has."""

    name: str
    image_id: str
    digest: str
    """Of the registry where there is one, else the image's id."""
    config: Mapping[str, Any]
    """The engine's, for containers of it."""

    @property
    def path(self) -> str:
        """The PATH that it sets."""
        variables = dict(entry.partition("=")[::2] for entry in self.config.get("Env") or [])
        return variables.get("PATH") or _DEFAULT_PATH

    @property
    def labels(self) -> Mapping[str, str]:
        return self.config.get("Labels") or {}


class ImageStore:
    """The images of one engine."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._known: dict[str, EngineImage] = {}
        """By name: sandboxes of one session have the same content, also if the name is given to another image."""
        self._unreachable = ""

    def find(self, name: str) -> EngineImage | None:
        """What the engine has under a name or id, now."""
        try:
            with self._engine.faults(f"looking for the image {name}"):
                data: dict[str, Any] = self._engine.api.inspect_image(name)
        except NotThere:
            return None
        image_id = f"sha256:{str(data['Id']).removeprefix('sha256:')}"
        # Podman makes up a digest for local images too: that of the manifest, as good as any.
        digests = [digest.partition("@")[2] for digest in data.get("RepoDigests") or []]
        return EngineImage(
            name, image_id, digests[0] if digests else image_id, data.get("Config") or {}
        )

    def find_layer(self, name: str) -> EngineImage | None:
        """One that we made, which `get` will not look for in a registry."""
        found = self.find(name)
        self._known.update({name: found} if found else {})
        return found

    def _find_made(self, name: str) -> EngineImage:
        if found := self.find_layer(name):
            return found
        raise InfraError(f"the image {name} is not there, although it was just pulled or made")

    def get(self, name: str) -> EngineImage:
        """An image for a sandbox: the same for the whole session, pulled if it is not there."""
        if known := self._known.get(name):
            return known
        is_id = name.startswith("sha256:")
        found = self.find(name) if self._settings.pull != "always" or is_id else None
        if found is None:
            get_it = f"get it: {self._engine.client} pull {name}"
            if self._settings.pull == "never" or is_id:
                raise UserError(f"there is no image {name}; {get_it}")
            try:
                found = self.pull(name)
            except (InfraError, UserError) as error:
                raise UserError(
                    f"there is no image {name} and it cannot be pulled ({error}); {get_it},"
                    " or cooperbench images build"
                ) from error
        return self._known.setdefault(name, found)

    def names_of(self, task: Task) -> list[str]:
        """What the task's image may be called: by the template that was set, else by both known ones."""
        template = self._settings.image_template or os.environ.get(image_names.ENVIRONMENT_VARIABLE)
        templates = (
            (template,)
            if template
            else (image_names.DEFAULT_TEMPLATE, image_names.PUBLISHED_TEMPLATE)
        )
        return [image_names.image_name(task, one) for one in templates]

    def present(self, task: Task) -> EngineImage | None:
        """The task's image if the engine has it and it is not one that we built from other files."""
        for found in filter(None, map(self.find, self.names_of(task))):
            if found.labels.get(CONTEXT, "") in ("", _context_key(task)):
                return found
        return None

    def provide(self, task: Task, say: Say) -> EngineImage:
        """The task's image: present, else pulled, else built. `pull="always"` asks the registry first."""
        present, reason = self.present(task), "pulling is switched off"
        found = present if self._settings.pull != "always" else None
        if found is None and self._settings.pull != "never":
            try:
                found = self.pull_task(task, say)
            except CooperBenchError as error:
                found, reason = present, str(error)
        if found is None and not task.dockerfile.is_file():
            names = " nor ".join(self.names_of(task))
            raise UserError(
                f"{task.label}: there is no image {names} ({reason}), and {_NO_DOCKERFILE}"
            )
        found = found or self.build(task, say)
        self._known[found.name] = found
        return found

    def pull_task(self, task: Task, say: Say) -> EngineImage:
        """The first of the task's names that a registry has; the published one is tried first."""
        if is_demo_task(task):
            raise UserError(
                f"{task.label} belongs to the demo, whose images are in no registry: cooperbench images build"
            )
        reasons = []
        for name in reversed(self.names_of(task)):
            say(f"pulling {name}")
            try:
                return self.pull(name)
            except InfraError as error:
                reasons.append(str(error))
        raise InfraError("; ".join(reasons))

    def pull(self, name: str) -> EngineImage:
        if self._unreachable:
            raise InfraError(f"pulling {name}: {self._unreachable}")
        full = f"docker.io/{name}" if self._engine.podman and not has_registry(name) else name
        problem = ""
        try:
            with self._engine.faults(f"pulling {name}"):
                for event in self._engine.api.pull(full, stream=True, decode=True):
                    problem = str(event.get("error") or problem)
        except InfraError as error:
            if re.search(_UNREACHABLE, str(error)):
                self._unreachable = "the registry cannot be reached"
            raise
        if problem:
            raise InfraError(f"pulling {name}: {printable(problem)[:300]}")
        return self._find_made(name)

    def build(self, task: Task, say: Say) -> EngineImage:
        name = self.names_of(task)[0]
        if not task.dockerfile.is_file():
            raise UserError(f"{task.label}: {_NO_DOCKERFILE}")
        say(f"building {name}")
        lines: list[str] = []
        problem = ""
        proxies = {key: value for key, value in os.environ.items() if key.lower() in _PROXIES}
        with self._engine.faults(f"building {name}"):
            networks = [found["Name"] for found in self._engine.api.networks(names=["bridge"])]
            events = self._engine.api.build(
                fileobj=_context(task),
                custom_context=True,
                tag=name,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=_BUILD_SECONDS,
                labels={CONTEXT: _context_key(task), TASK: task.label},
                buildargs={**proxies, **self._settings.build_args},
                # Without a bridge the engine has no network to build in but the host's.
                network_mode=None if self._engine.podman or "bridge" in networks else "host",
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
        said = [
            line for line in lines if line.strip() and not line.startswith("Removing intermediate")
        ]
        last = f" after: {printable(said[-1].strip())[:200]}" if said else ""
        return UserError(f"{error}{last} (see it with: {client} build {task.path})")

    def derive(
        self, task: Task, source: EngineImage, make_sandbox: MakeSandbox, say: Say
    ) -> tuple[EngineImage, EngineImage]:
        """The image for test runs, which is the source if that has no later commits, and the one for agents."""
        names = [derived_name(kind, task, source) for kind in (JUDGED, PREPARED)]
        judged, agents = map(self.find_layer, names)
        if agents and agents.labels[PREPARED] == source.image_id:
            judged = source
        if not judged or not agents:
            say(f"removing the history from {source.name}")
            options = SandboxOptions(purpose="setup", labels={"task": task.label})
            sandbox = make_sandbox(source.name, 2 * SCRIPT_SECONDS + 120, REPO_DIR, options)
            try:
                if sandbox.run(
                    ["sh", "-c", "command -v git"], timeout_seconds=60, cwd="/"
                ).returncode:
                    raise lacks_tool(source.name, "git is missing")
                dropped = sandbox.run_script("strip_future_commits.sh")
                judged = self.commit(sandbox, names[0], task, source, JUDGED) if dropped else source
                sandbox.run_script("strip_history.sh", _BASE_GIT_DIR)
                agents = self.commit(sandbox, names[1], task, judged, PREPARED)
            finally:
                sandbox.terminate()
        return judged, agents

    def commit(
        self, sandbox: DockerSandbox, name: str, task: Task, source: EngineImage, kind: str
    ) -> EngineImage:
        """A sandbox's files as an image of a `kind` (a label), otherwise configured like its `source`."""
        repository, _, tag = name.partition(":")
        # Without its owner: containers that users make of the image would pass for leftovers.
        labels = dict.fromkeys((OWNER, SESSION, PURPOSE, CONTEXT, JUDGED), "")
        labels |= {TASK: task.label, kind: source.image_id}
        changes = [
            # One a line and without quotes, as Podman takes everything after the first = for the value.
            *(f"LABEL {label}={value}" for label, value in labels.items()),
            f"ENV PATH={source.path}",
            f"WORKDIR {source.config.get('WorkingDir') or '/'}",
            f"ENTRYPOINT {json.dumps(source.config.get('Entrypoint') or [])}",
            # An empty command would not replace the sandbox's.
            f"CMD {json.dumps(source.config.get('Cmd') or ['sh'])}",
        ]
        with self._engine.faults(f"keeping {name}"):
            self._engine.api.commit(sandbox.container, repository, tag, changes=changes)
        return self._find_made(name)

    def made(self, kind: str, tasks: set[str] | None = None) -> list[str]:
        """The images of a kind (a label) that we made, of some tasks or of all; an id where it has no name."""
        with self._engine.faults("listing the images"):
            images: list[dict[str, Any]] = self._engine.api.images()
        found = []
        for image in images:
            labels = image.get("Labels") or {}
            if labels.get(kind) and (tasks is None or labels.get(TASK) in tasks):
                names = [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]
                found += names or [image["Id"]]
        return sorted(found)

    def remove_made(self, tasks: set[str] | None, *, built: bool) -> list[str]:
        """Remove the layers that we made, of some tasks or of all; if asked also the images that we built."""
        removed = []
        # Layers first: the others are below them.
        for kind in (PREPARED, DEPENDENCY_LAYER, JUDGED, *([CONTEXT] if built else [])):
            for name in self.made(kind, tasks):
                with suppress(NotThere), self._engine.faults(f"removing {name}"):
                    self._engine.api.remove_image(name, force=True)
                    removed.append(name)
        return removed


def derived_name(kind: str, task: Task, source: EngineImage) -> str:
    """Of the image for agents (PREPARED) or for test runs (JUDGED)."""
    scripts = [sandbox_script(name) for name in ("strip_future_commits.sh", "strip_history.sh")]
    made_of = "\n".join([f"{_FORMAT} {source.image_id}", *scripts])
    return layer_name(kind, task, hashlib.sha256(made_of.encode()).hexdigest()[:16])


def layer_name(kind: str, task: Task, key: str) -> str:
    return f"{kind.replace('.', '-')}/{task.repo.lower()}:task{task.task_id}-{key}"


def _context_key(task: Task) -> str:
    """What identifies a build: the files in it. Not its arguments, which need not be at hand to use it."""
    return hashlib.sha256(_context(task).getvalue()).hexdigest()[:32]


def _context(task: Task) -> io.BytesIO:
    """The task's folder without what is hidden, the same bytes for the same content."""

    def as_in_a_checkout(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        """What an installer made of owners and modes must not matter."""
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(task.path.rglob("*")):
            name = path.relative_to(task.path)
            if "__pycache__" not in name.parts and not _HIDDEN.fullmatch(name.parts[0]):
                archive.add(path, name.as_posix(), recursive=False, filter=as_in_a_checkout)
    packed.seek(0)
    return packed
