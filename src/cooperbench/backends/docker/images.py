"""A task's images: find, pull or build them, and derive others from them.

The image for agents has a layer that replaces the repository's history by a single commit. The
image for test runs has a layer without future commits, if there are any. A container cannot see the
layers below.
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
from typing import Any, NamedTuple

from cooperbench.backends.docker.engine import Engine, NotThere, translate
from cooperbench.backends.docker.sandbox import DockerSandbox, missing_tool
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

OnProgress = Callable[[str], None]
"""Called with a line about what is being done."""
MakeSandbox = Callable[[str, int, str, SandboxOptions], DockerSandbox]

OWNER = "cooperbench.owner"
"""Label of containers, like the next two."""
SESSION = "cooperbench.session"
PURPOSE = "cooperbench.purpose"
TASK = "cooperbench.task"
CONTEXT = "cooperbench.context"
"""Label of images that we built: a hash of the build context."""
PREPARED = "cooperbench.prepared"
"""Label of images for agents (without history): the id of the image for test runs."""
FOR_TEST_RUNS = "cooperbench.judged"
"""Label of images for test runs (without future commits): the id of the image below."""
DEPENDENCY_LAYER = "cooperbench.installs"
"""Label of images with installed dependencies: the id of the image below."""
_BASE_GIT_DIR = "/cooperbench/base.git"
_FORMAT = 2

_HIDDEN = re.compile(r"feature[0-9]+|combined\.patch")
"""Files that are never part of a build context, because agents must not see them."""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
_UNREACHABLE = re.compile(
    r"""
    no\ such\ host | dial\ tcp | lookup\ .*
    | i/o\ timeout | connection\ refused | network\ is\ unreachable | context\ deadline
    """,
    re.VERBOSE,
)
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
    """Digest in the registry; without one, the image's id."""
    config: Mapping[str, Any]
    """The image's configuration for containers, in the engine's format."""

    @property
    def path(self) -> str:
        """The PATH of containers."""
        path = ""
        for entry in self.config.get("Env") or []:
            name, _, value = entry.partition("=")
            if name == "PATH":
                path = value
        return path or _DEFAULT_PATH

    @property
    def labels(self) -> Mapping[str, str]:
        """The image's labels."""
        return self.config.get("Labels") or {}


class DerivedImages(NamedTuple):
    """The images derived from a task's image."""

    for_tests: EngineImage
    for_agents: EngineImage


class ImageStore:
    """The images of one engine."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._known: dict[str, EngineImage] = {}
        """Images by name. A name keeps its content in one session, even if it is tagged anew."""
        self._unreachable = ""

    def find(self, name: str) -> EngineImage | None:
        """Return the image that the engine has under a name or id; None if there is none."""
        try:
            with self._engine.faults(f"looking for the image {name}"):
                data: dict[str, Any] = self._engine.api.inspect_image(name)
        except NotThere:
            return None
        image_id = f"sha256:{str(data['Id']).removeprefix('sha256:')}"
        # Podman also has digests for local images: those of their manifests, which work as well.
        digests = [digest.partition("@")[2] for digest in data.get("RepoDigests") or []]
        return EngineImage(
            name=name,
            image_id=image_id,
            digest=digests[0] if digests else image_id,
            config=data.get("Config") or {},
        )

    def find_layer(self, name: str) -> EngineImage | None:
        """Return an image that we created, so that `get` does not look for it in a registry."""
        image = self.find(name)
        if image is not None:
            self._known[name] = image
        return image

    def _find_created(self, name: str) -> EngineImage:
        image = self.find_layer(name)
        if image is None:
            raise InfraError(f"the image {name} is missing although it was just pulled or created")
        return image

    def get(self, name: str) -> EngineImage:
        """Return an image for a sandbox, pulled if the engine does not have it."""
        if name in self._known:
            return self._known[name]
        is_id = name.startswith("sha256:")
        image = None
        if self._settings.pull != "always" or is_id:
            image = self.find(name)
        if image is None:
            advice = f"get it: {self._engine.client} pull {name}"
            if self._settings.pull == "never" or is_id:
                raise UserError(f"there is no image {name}; {advice}")
            try:
                image = self.pull(name)
            except (InfraError, UserError) as error:
                raise UserError(
                    f"there is no image {name} and it cannot be pulled ({error}); {advice},"
                    " or cooperbench images build"
                ) from error
        return self._known.setdefault(name, image)

    def names_of(self, task: Task) -> list[str]:
        """Return the names of a task's image: by the template in force, else by both known ones."""
        template = self._settings.image_template or os.environ.get(image_names.ENVIRONMENT_VARIABLE)
        if template:
            templates = [template]
        else:
            templates = [image_names.DEFAULT_TEMPLATE, image_names.PUBLISHED_TEMPLATE]
        return [image_names.image_name(task, template) for template in templates]

    def present(self, task: Task) -> EngineImage | None:
        """Return the engine's image of a task, unless we built it from different files."""
        for name in self.names_of(task):
            image = self.find(name)
            if image and image.labels.get(CONTEXT, "") in ("", _context_key(task)):
                return image
        return None

    def provide(self, task: Task, on_progress: OnProgress) -> EngineImage:
        """Return the task's image: present, else pulled, else built.

        With `pull="always"`, the registry comes first.
        """
        present = self.present(task)
        reason = "pulling is switched off"
        image = present if self._settings.pull != "always" else None
        if image is None and self._settings.pull != "never":
            try:
                image = self.pull_task(task, on_progress)
            except CooperBenchError as error:
                image = present
                reason = str(error)
        if image is None and not task.dockerfile.is_file():
            names = " nor ".join(self.names_of(task))
            raise UserError(
                f"{task.label}: there is no image {names} ({reason}), and {_NO_DOCKERFILE}"
            )
        if image is None:
            image = self.build(task, on_progress)
        self._known[image.name] = image
        return image

    def pull_task(self, task: Task, on_progress: OnProgress) -> EngineImage:
        """Pull the first of the task's names that a registry has, the published one first."""
        if is_demo_task(task):
            raise UserError(
                f"{task.label} belongs to the demo, whose images are not in a registry:"
                " cooperbench images build"
            )
        reasons = []
        for name in reversed(self.names_of(task)):
            on_progress(f"pulling {name}")
            try:
                return self.pull(name)
            except InfraError as error:
                reasons.append(str(error))
        raise InfraError("; ".join(reasons))

    def pull(self, name: str) -> EngineImage:
        """Pull an image; InfraError if the registry does not have it or cannot be reached."""
        if self._unreachable:
            raise InfraError(f"pulling {name}: {self._unreachable}")
        full_name = name
        if self._engine.podman and not has_registry(name):
            full_name = f"docker.io/{name}"
        problem = ""
        try:
            with self._engine.faults(f"pulling {name}"):
                for event in self._engine.api.pull(full_name, stream=True, decode=True):
                    problem = str(event.get("error") or problem)
        except InfraError as error:
            if _UNREACHABLE.search(str(error)):
                self._unreachable = "the registry cannot be reached"
            raise
        if problem:
            raise InfraError(f"pulling {name}: {printable(problem)[:300]}")
        return self._find_created(name)

    def build(self, task: Task, on_progress: OnProgress) -> EngineImage:
        """Build the task's image from its Dockerfile."""
        name = self.names_of(task)[0]
        if not task.dockerfile.is_file():
            raise UserError(f"{task.label}: {_NO_DOCKERFILE}")
        on_progress(f"building {name}")
        lines: list[str] = []
        problem = ""
        proxies = {key: value for key, value in os.environ.items() if key.lower() in _PROXIES}
        with self._engine.faults(f"building {name}"):
            bridges = self._engine.api.networks(names=["bridge"])
            has_bridge = any(network["Name"] == "bridge" for network in bridges)
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
                # Without a bridge, only the host's network is available for builds.
                network_mode=None if self._engine.podman or has_bridge else "host",
            )
            for event in events:
                problem = problem or str(event.get("error") or "")
                lines += str(event.get("stream") or "").splitlines()
        if problem:
            raise self._build_error(task, name, problem, lines)
        return self._find_created(name)

    def _build_error(self, task: Task, name: str, problem: str, lines: list[str]) -> UserError:
        """Return an error with the engine's message and the last line of the build."""
        client = self._engine.client
        error = translate(RuntimeError(problem), f"{task.label}: building {name} failed", client)
        if isinstance(error, UserError):
            return error
        if _UNREACHABLE.search(problem):
            bases = ", ".join(_FROM.findall(task.dockerfile.read_text("utf-8", "replace")))
            return UserError(
                f"{error}; if no registry can be reached, {client} pull or {client} load the"
                f" Dockerfile's base images ({printable(bases)});"
                " set its arguments with COOPERBENCH_BUILD_ARGS=NAME=…"
            )
        output = [
            line for line in lines if line.strip() and not line.startswith("Removing intermediate")
        ]
        last_line = f" after: {printable(output[-1].strip())[:200]}" if output else ""
        return UserError(f"{error}{last_line} (reproduce it with: {client} build {task.path})")

    def derive(
        self,
        task: Task,
        source: EngineImage,
        make_sandbox: MakeSandbox,
        on_progress: OnProgress,
    ) -> DerivedImages:
        """Return the images for test runs and for agents, created unless they exist."""
        test_name = derived_name(FOR_TEST_RUNS, task, source)
        agent_name = derived_name(PREPARED, task, source)
        for_tests = self.find_layer(test_name)
        for_agents = self.find_layer(agent_name)
        if for_agents and for_agents.labels[PREPARED] == source.image_id:
            # The source has no future commits and serves for test runs itself.
            for_tests = source
        if for_tests and for_agents:
            return DerivedImages(for_tests, for_agents)
        on_progress(f"removing the history from {source.name}")
        options = SandboxOptions(purpose="setup", labels={"task": task.label})
        sandbox = make_sandbox(source.name, 2 * SCRIPT_SECONDS + 120, REPO_DIR, options)
        try:
            has_git = sandbox.run(["sh", "-c", "command -v git"], timeout_seconds=60, cwd="/")
            if has_git.returncode:
                raise missing_tool(source.name, "git is missing")
            for_tests = source
            if sandbox.run_script("strip_future_commits.sh"):
                for_tests = self.commit(sandbox, test_name, task, source, FOR_TEST_RUNS)
            sandbox.run_script("strip_history.sh", _BASE_GIT_DIR)
            for_agents = self.commit(sandbox, agent_name, task, for_tests, PREPARED)
        finally:
            sandbox.terminate()
        return DerivedImages(for_tests, for_agents)

    def commit(
        self, sandbox: DockerSandbox, name: str, task: Task, source: EngineImage, kind: str
    ) -> EngineImage:
        """Store a sandbox's files as an image with label `kind`, configured like its source."""
        repository, _, tag = name.partition(":")
        # Without an owner: containers that users start from the image must not look like leftovers.
        labels = dict.fromkeys((OWNER, SESSION, PURPOSE, CONTEXT, FOR_TEST_RUNS), "")
        labels[TASK] = task.label
        labels[kind] = source.image_id
        # One label per line, without quotes: Podman reads everything after the first = as value.
        changes = [f"LABEL {label}={value}" for label, value in labels.items()]
        changes += [
            f"ENV PATH={source.path}",
            f"WORKDIR {source.config.get('WorkingDir') or '/'}",
            f"ENTRYPOINT {json.dumps(source.config.get('Entrypoint') or [])}",
            # An empty command would not replace the sandbox's command.
            f"CMD {json.dumps(source.config.get('Cmd') or ['sh'])}",
        ]
        with self._engine.faults(f"storing {name}"):
            self._engine.api.commit(sandbox.container, repository, tag, changes=changes)
        return self._find_created(name)

    def list_created(self, kind: str, tasks: set[str] | None = None) -> list[str]:
        """Return the names (or ids) of our images with label `kind`, of some tasks or of all."""
        with self._engine.faults("listing the images"):
            images: list[dict[str, Any]] = self._engine.api.images()
        created = []
        for image in images:
            labels = image.get("Labels") or {}
            if labels.get(kind) and (tasks is None or labels.get(TASK) in tasks):
                names = [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]
                created += names or [image["Id"]]
        return sorted(created)

    def remove_created(self, tasks: set[str] | None, *, built: bool) -> list[str]:
        """Remove our layers, of some tasks or of all; with `built` also images that we built."""
        # Upper layers first.
        kinds = [PREPARED, DEPENDENCY_LAYER, FOR_TEST_RUNS]
        if built:
            kinds.append(CONTEXT)
        removed = []
        for kind in kinds:
            for name in self.list_created(kind, tasks):
                with suppress(NotThere), self._engine.faults(f"removing {name}"):
                    self._engine.api.remove_image(name, force=True)
                    removed.append(name)
        return removed


def derived_name(kind: str, task: Task, source: EngineImage) -> str:
    """Return the name of the image for agents (PREPARED) or for test runs (FOR_TEST_RUNS)."""
    scripts = [sandbox_script(name) for name in ("strip_future_commits.sh", "strip_history.sh")]
    ingredients = "\n".join([f"{_FORMAT} {source.image_id}", *scripts])
    return layer_name(kind, task, hashlib.sha256(ingredients.encode()).hexdigest()[:16])


def layer_name(kind: str, task: Task, key: str) -> str:
    """Return the name of a layer that we create on top of a task's image."""
    return f"{kind.replace('.', '-')}/{task.repo.lower()}:task{task.task_id}-{key}"


def _context_key(task: Task) -> str:
    """Return a hash of the files of a build. Build arguments do not count."""
    return hashlib.sha256(_context(task).getvalue()).hexdigest()[:32]


def _context(task: Task) -> io.BytesIO:
    """Return the build context as a tar file, byte for byte the same for the same content."""

    def _normalize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        """Reset times, owners and modes, which depend on the installation."""
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(task.path.rglob("*")):
            name = path.relative_to(task.path)
            if "__pycache__" not in name.parts and not _HIDDEN.fullmatch(name.parts[0]):
                archive.add(path, name.as_posix(), recursive=False, filter=_normalize)
    packed.seek(0)
    return packed
