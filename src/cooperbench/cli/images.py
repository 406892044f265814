"""`cooperbench images`: task images of docker and local, and snapshots of the modal backend."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.images import (
    DEPENDENCY_LAYER,
    FOR_TEST_RUNS,
    PREPARED,
    ImageStore,
    OnProgress,
    derived_name,
)
from cooperbench.cli import arguments
from cooperbench.dataset.discovery import (
    PairFilter,
    load_tasks,
    resolve_dataset_dir,
    select_pairs,
)
from cooperbench.dataset.image_names import image_name
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import Task
from cooperbench.retry import run_in_daemon_threads
from cooperbench.text import plural, printable, shorten

ACTIONS = {
    "list": "show which images exist and their names",
    "pull": "pull them from their registry and make the images for agents",
    "build": "build them from their Dockerfiles and make the images for agents",
    "push": "tag them for your registry and push them there, for backends that pull",
    "clean": "remove the images that were made from them for agents and test runs;"
    " with --built also the images that were built here; with --backend local all images",
    "import": "add the images of FILE (docker save, or an OCI layout) for the local backend",
    "export": "write images from their registry to FILE, for import on another machine",
}
LOCAL_ACTIONS = ("import", "export")
_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*")
_MAX_PROBLEM_CHARACTERS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench images`."""
    actions = "; ".join(f"{name}: {text}" for name, text in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), help=actions)
    file = "import: archive or folder to read; export: archive to write"
    parser.add_argument("file", nargs="?", metavar="FILE", help=file)
    arguments.add_selection_arguments(parser)
    template = (
        "names of task images: text with {repo}, {short} and {task_id},"
        " or one of the templates seeds and published"
    )
    parser.add_argument("--image-template", metavar="NAME", help=template)
    backend = (
        "local: images without a container engine; modal: list and clean its snapshots"
        " (default: local for import and export, else docker)"
    )
    parser.add_argument("--backend", choices=("docker", "local", "modal"), help=backend)
    name = "import: name of the image, if the file does not contain it"
    parser.add_argument("--name", metavar="NAME", help=name)
    older_than = "clean --backend local: only images that have not been used for this many days"
    parser.add_argument(
        "--older-than", type=arguments.whole_above_zero, metavar="DAYS", help=older_than
    )
    max_size = (
        "clean --backend local: only as many images as needed to get below this size, e.g. 20g"
    )
    parser.add_argument("--max-size", metavar="SIZE", help=max_size)
    arguments.add_json_argument(parser)
    built = "clean: also remove the images that were built here"
    parser.add_argument("--built", action="store_true", help=built)
    registry = "push: target (default: the repository cooperbench of your Google Cloud project)"
    parser.add_argument("--registry", metavar="HOST/PATH", help=registry)
    jobs = "number of images at once (default: %(default)s)"
    parser.add_argument(
        "-j", "--jobs", type=arguments.whole_above_zero, default=2, metavar="N", help=jobs
    )


class Outcome(NamedTuple):
    """The result of an action: for machines, and as lines for people."""

    content: dict[str, Any]
    lines: list[str]


@dataclass
class _ImageResult:
    """One task's image after a pull, build or push."""

    task: str
    image: str = ""
    digest: str = ""
    error: str | None = None

    def to_json(self) -> dict[str, str]:
        """Return this image as it is printed with --json."""
        if self.error is not None:
            return {"task": self.task, "error": self.error}
        return {"task": self.task, "image": self.image, "digest": self.digest}


class _NamedImage(NamedTuple):
    name: str
    digest: str


def execute(args: argparse.Namespace) -> int:
    """Run the action; return 1 if it failed for an image."""
    selection = (args.subset, args.repo, args.task_id, args.features, args.dataset_dir)
    all_images = args.action == "clean" and all(value is None for value in selection)
    tasks: list[Task] = []
    labels = None
    if not all_images and args.action != "import":
        tasks = select_tasks(args)
        labels = {task.label for task in tasks}
    match args.backend or _default_backend(args.action):
        case "local":
            from cooperbench.cli.local_images import run_action

            outcome = Outcome(*run_action(args, tasks, all_images=all_images))
        case "modal":
            outcome = _run_for_modal(args.action, labels)
        case _:
            outcome = _run_for_docker(args, tasks, labels)
    arguments.print_result(args, outcome.content, outcome.lines)
    return 1 if any("error" in row for row in outcome.content.get("images", ())) else 0


def _default_backend(action: str) -> str:
    return "local" if action in LOCAL_ACTIONS else "docker"


def select_tasks(args: argparse.Namespace) -> list[Task]:
    """Return the tasks that the arguments select, even those with a single feature."""
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subset is None and args.features is None:
        return list(load_tasks(dataset_dir, args.repo, args.task_id))
    pairs = select_pairs(dataset_dir, PairFilter.from_args(args)).pairs
    return list(dict.fromkeys(pair.task for pair in pairs))


def _run_for_modal(action: str, labels: set[str] | None) -> Outcome:
    """List or remove snapshots. Modal itself pulls, builds and keeps images."""
    from cooperbench.backends.modal import ModalBackend
    from cooperbench.backends.modal.images import snapshot_files

    if action == "list":
        rows = [{"task": file.task, "image": file.image} for file in snapshot_files(labels)]
        lines = [f"{row['task']}  with what its runner installs: {row['image']}" for row in rows]
        return Outcome({"images": rows}, [*lines, plural(len(rows), "snapshot")])
    if action != "clean":
        raise UserError(f"images {action} is not for Modal, which does that when a run needs it")
    with closing(ModalBackend()) as backend:
        return _removed(backend.remove_snapshots(labels), "snapshot")


def _removed(names: list[str], noun: str) -> Outcome:
    lines = [f"removed {name}" for name in names]
    return Outcome({"removed": names}, [*lines, f"removed {plural(len(names), noun)}"])


def _run_for_docker(
    args: argparse.Namespace, tasks: Sequence[Task], labels: set[str] | None
) -> Outcome:
    if args.action in LOCAL_ACTIONS:
        raise UserError(f"images {args.action} is for --backend local")
    with closing(DockerBackend(image_template=args.image_template)) as backend:
        match args.action:
            case "clean":
                outcome = _removed(backend.images.remove_created(labels, built=args.built), "image")
            case "list":
                outcome = _list_images(backend.images, tasks)
            case "push":
                outcome = _push_images(backend, tasks, args)
            case "pull":
                outcome = _for_each(
                    backend, tasks, partial(_prepare, backend, backend.images.pull_task), args.jobs
                )
            case _:
                outcome = _for_each(
                    backend, tasks, partial(_prepare, backend, backend.images.build), args.jobs
                )
        return outcome._replace(content={"engine": backend.engine.where, **outcome.content})


@dataclass
class _TaskImages:
    """The images of one task, for `images list`."""

    task: str
    image: str
    present: bool
    digest: str | None
    agent_image: str | None
    agent_image_present: bool
    images_without_later_commits: list[str] = field(default_factory=list)
    images_with_installs: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the images as lines for people."""
        headline = f"{self.task}  {self.image}  {self.digest or 'missing'}"
        if self.present and not self.agent_image_present:
            headline += "  (none for agents yet)"
        for_tests = [
            f"  without later commits, for test runs: {image}"
            for image in self.images_without_later_commits
        ]
        with_installs = [
            f"  with what its runner installs: {image}" for image in self.images_with_installs
        ]
        return [headline, *for_tests, *with_installs]


def _list_images(images: ImageStore, tasks: Sequence[Task]) -> Outcome:
    rows = [_task_images(images, task) for task in tasks]
    lines: list[str] = []
    for row in rows:
        lines += row.lines()
    present = sum(1 for row in rows if row.present)
    summary = f"{present:,} of {plural(len(rows), 'image')} present"
    if present < len(rows):
        summary += "; get them: cooperbench images pull, or cooperbench images build"
    return Outcome({"images": [vars(row) for row in rows]}, [*lines, summary])


def _task_images(images: ImageStore, task: Task) -> _TaskImages:
    image = images.present(task)
    agent_image = derived_name(PREPARED, task, image) if image else None
    return _TaskImages(
        task=task.label,
        image=image.name if image else images.names_of(task)[0],
        present=image is not None,
        digest=image.digest if image else None,
        agent_image=agent_image,
        agent_image_present=agent_image is not None and images.find(agent_image) is not None,
        images_without_later_commits=images.list_created(FOR_TEST_RUNS, {task.label}),
        images_with_installs=images.list_created(DEPENDENCY_LAYER, {task.label}),
    )


def _for_each(
    backend: DockerBackend,
    tasks: Sequence[Task],
    process: Callable[[Task, OnProgress], _NamedImage],
    jobs: int,
) -> Outcome:
    """Process the image of each task, several at once. A failure does not stop the others."""
    backend.check()  # one clear line before the work starts

    def process_task(task: Task) -> _ImageResult:
        def say(line: str) -> None:
            arguments.print_note(f"{task.label}: {line}")

        try:
            name, digest = process(task, say)
        except CooperBenchError as error:
            say(f"failed: {error}")
            return _ImageResult(task.label, error=str(error))
        say(f"ready: {name} {digest}")
        return _ImageResult(task.label, name, digest)

    futures, _ = run_in_daemon_threads(process_task, tasks, jobs, "image")
    try:
        results = [future.result() for future in futures.values()]
    finally:
        for future in futures.values():
            future.cancel()
    ready = sum(1 for result in results if result.error is None)
    content = {"images": [result.to_json() for result in results]}
    return Outcome(content, [f"{ready:,} of {plural(len(results), 'image')} ready"])


def _prepare(
    backend: DockerBackend, get: Callable[[Task, OnProgress], object], task: Task, say: OnProgress
) -> _NamedImage:
    """Pull or build the image of a task, and make those for agents and test runs from it."""
    get(task, say)
    image = backend.prepare(task, say)
    return _NamedImage(image.ref, image.digest)


def _push_images(
    backend: DockerBackend, tasks: Sequence[Task], args: argparse.Namespace
) -> Outcome:
    template = registry_template(args.registry)
    outcome = _for_each(backend, tasks, partial(_push, backend, template), args.jobs)
    outcome.content["image_template"] = template
    if any("error" not in row for row in outcome.content["images"]):
        outcome.lines.append(f"use them: --image-template '{template}'")
    return outcome


def registry_template(registry: str | None) -> str:
    """Return the image template for a registry.

    The default is the repository `cooperbench` in the Artifact Registry of the user's project.
    """
    if registry is None:
        registry = _artifact_registry()
    registry = registry.rstrip("/")
    if not _REGISTRY.fullmatch(registry):
        example = "us-central1-docker.pkg.dev/my-project/cooperbench"
        raise UserError(f"--registry {registry!r} is not HOST/PATH, e.g. {example}")
    return f"{registry}/{{repo}}:task{{task_id}}"


def _artifact_registry() -> str:
    from cooperbench.backends.gcp.settings import read_settings

    try:
        settings = read_settings()
    except UserError:
        raise UserError(
            "no registry to push to: use --registry HOST/PATH, or cooperbench config gcp"
        ) from None
    project = settings.project.replace(":", "/")
    return f"{settings.region}-docker.pkg.dev/{project}/cooperbench"


def _push(backend: DockerBackend, template: str, task: Task, say: OnProgress) -> _NamedImage:
    from cooperbench.backends.gcp.machine_engine import sign_in

    image = backend.images.present(task)
    if image is None:
        missing = backend.images.names_of(task)[0]
        raise UserError(f"there is no image {missing} here: cooperbench images build")
    name = image_name(task, template)
    repository, _, tag = name.rpartition(":")
    say(f"pushing {name}")
    api = backend.engine.api
    with backend.engine.faults(f"pushing {name}"):
        api.tag(image.image_id, repository, tag)
        sign_in(api, [name])
        events = list(api.push(repository, tag=tag, stream=True, decode=True))
    digest = ""
    for event in events:
        if event.get("error"):
            raise InfraError(_push_failure(name, str(event["error"])))
        digest = digest or str(event.get("aux", {}).get("Digest", ""))
    return _NamedImage(name, digest)


def _push_failure(name: str, problem: str) -> str:
    host = name.partition("/")[0]
    login = "gcloud auth configure-docker" if host.endswith("pkg.dev") else "docker login"
    reason = shorten(printable(re.sub(r"\s+", " ", problem)), _MAX_PROBLEM_CHARACTERS)
    return (
        f"pushing {name}: {reason}; check that the repository exists"
        f" and that you are signed in ({login} {host})"
    )


COMMANDS = {"images": (add_arguments, execute)}
