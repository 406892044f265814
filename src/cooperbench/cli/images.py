"""`cooperbench images`: the task images of the docker backend, and the snapshots of the modal backend."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.images import (
    DEPENDENCY_LAYER,
    JUDGED,
    PREPARED,
    ImageStore,
    Say,
    derived_name,
)
from cooperbench.cli import arguments
from cooperbench.dataset.discovery import load_tasks, resolve_dataset_dir, select_pairs
from cooperbench.dataset.image_names import image_name
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.models import Task
from cooperbench.retry import run_in_daemon_threads
from cooperbench.text import plural, printable

ACTIONS = {
    "list": "which images there are, and what they are called",
    "pull": "get them from their registry, and make the ones for agents",
    "build": "build them from their Dockerfiles, and make the ones for agents",
    "push": "tag them for a registry of yours and send them there, for backends that pull",
    "clean": "remove the images made from them (for agents, for test runs); --built: also those that were built here",
}
_REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), help=text)
    arguments.add_selection_arguments(parser)
    template = "what task images are called: text with {repo}, {short} and {task_id}, or seeds, or published"
    parser.add_argument("--image-template", metavar="NAME", help=template)
    backends = "modal: list and clean the snapshots that it keeps (default: %(default)s)"
    parser.add_argument("--backend", choices=("docker", "modal"), default="docker", help=backends)
    arguments.add_json_argument(parser)
    parser.add_argument(
        "--built", action="store_true", help="clean: also the images that were built here"
    )
    where = "push: where to (default: the repository cooperbench of your Google Cloud project)"
    parser.add_argument("--registry", metavar="HOST/PATH", help=where)
    jobs = "images at once (default: %(default)s)"
    parser.add_argument(
        "-j", "--jobs", type=arguments.whole_above_zero, default=2, metavar="N", help=jobs
    )


class Outcome(NamedTuple):
    content: dict[str, Any]
    lines: list[str]


def execute(args: argparse.Namespace) -> int:
    chosen = (args.subset, args.repo, args.task_id, args.features, args.dataset_dir)
    every = args.action == "clean" and all(value is None for value in chosen)
    tasks = [] if every else select_tasks(args)
    labels = None if every else {task.label for task in tasks}
    done = (
        _of_modal(args.action, labels)
        if args.backend == "modal"
        else _of_docker(args, tasks, labels)
    )
    arguments.print_result(args, done.content, done.lines)
    return 1 if any("error" in row for row in done.content.get("images", ())) else 0


def select_tasks(args: argparse.Namespace) -> list[Task]:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subset is None and args.features is None:
        return list(load_tasks(dataset_dir, args.repo, args.task_id))
    return list(dict.fromkeys(pair.task for pair in select_pairs(dataset_dir, args).pairs))


def _of_modal(action: str, labels: set[str] | None) -> Outcome:
    """Modal itself pulls, builds and keeps images; what we keep there are snapshots with what runners install."""
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


def _removed(names: list[str], what: str) -> Outcome:
    lines = [f"removed {name}" for name in names]
    return Outcome({"removed": names}, [*lines, f"removed {plural(len(names), what)}"])


def _of_docker(args: argparse.Namespace, tasks: Sequence[Task], labels: set[str] | None) -> Outcome:
    with closing(DockerBackend(image_template=args.image_template)) as backend:
        match args.action:
            case "clean":
                done = _removed(backend.images.remove_made(labels, built=args.built), "image")
            case "list":
                done = _list(backend.images, tasks)
            case "push":
                template = registry_template(args.registry)
                done = _for_each(backend, tasks, partial(_push, backend, template), args.jobs)
                done.content["image_template"] = template
                done.lines.append(f"use them: --image-template '{template}'")
            case action:
                get = backend.images.pull_task if action == "pull" else backend.images.build
                done = _for_each(backend, tasks, partial(_get, backend, get), args.jobs)
        return done._replace(content={"engine": backend.engine.where, **done.content})


def _list(images: ImageStore, tasks: Sequence[Task]) -> Outcome:
    rows: list[dict[str, Any]] = []
    lines = []
    for task in tasks:
        found = images.present(task)
        agents = derived_name(PREPARED, task, found) if found else None
        row = {
            "task": task.label,
            "image": found.name if found else images.names_of(task)[0],
            "present": found is not None,
            "digest": found.digest if found else None,
            "agent_image": agents,
            "agent_image_present": bool(agents and images.find(agents)),
            "images_without_later_commits": (judged := images.made(JUDGED, {task.label})),
            "images_with_installs": (layers := images.made(DEPENDENCY_LAYER, {task.label})),
        }
        rows.append(row)
        agents_too = "" if row["agent_image_present"] or not found else "  (none for agents yet)"
        lines.append(f"{task.label}  {row['image']}  {row['digest'] or 'missing'}{agents_too}")
        lines += [f"  without later commits, for test runs: {layer}" for layer in judged]
        lines += [f"  with what its runner installs: {layer}" for layer in layers]
    there = sum(row["present"] for row in rows)
    missing = (
        "; get them: cooperbench images pull, or cooperbench images build"
        if there < len(rows)
        else ""
    )
    return Outcome(
        {"images": rows}, [*lines, f"{there} of {plural(len(rows), 'image')} there{missing}"]
    )


def _for_each(
    backend: DockerBackend,
    tasks: Sequence[Task],
    work: Callable[[Task, Say], tuple[str, str]],
    jobs: int,
) -> Outcome:
    """Each by itself: one that fails does not keep the others from being made. `work` gives name and digest."""
    backend.check()  # one clear line, before the work starts

    def one(task: Task) -> dict[str, str]:
        def say(line: str) -> None:
            arguments.print_note(f"{task.label}: {line}")

        try:
            name, digest = work(task, say)
        except CooperBenchError as error:
            say(f"failed: {error}")
            return {"task": task.label, "error": str(error)}
        say(f"ready: {name} {digest}")
        return {"task": task.label, "image": name, "digest": digest}

    futures, _ = run_in_daemon_threads(one, tasks, jobs, "image")
    try:
        rows = [future.result() for future in futures.values()]
    finally:
        for future in futures.values():
            future.cancel()
    ready = sum("error" not in row for row in rows)
    return Outcome({"images": rows}, [f"{ready} of {plural(len(rows), 'image')} ready"])


def _get(
    backend: DockerBackend, get: Callable[[Task, Say], object], task: Task, say: Say
) -> tuple[str, str]:
    get(task, say)
    image = backend.prepare(task, say)
    return image.ref, image.digest


def registry_template(registry: str | None) -> str:
    """What images are called there. Without a registry it is Artifact Registry's, in the project that is set up."""
    if registry is None:
        from cooperbench.backends.gcp.settings import read_settings

        try:
            settings = read_settings()
        except UserError:
            raise UserError("where to? --registry HOST/PATH, or cooperbench config gcp") from None
        registry = (
            f"{settings.region}-docker.pkg.dev/{settings.project.replace(':', '/')}/cooperbench"
        )
    registry = registry.rstrip("/")
    if not _REGISTRY.fullmatch(registry):
        raise UserError(
            f"--registry {registry!r} is not HOST/PATH, e.g. us-central1-docker.pkg.dev/my-project/cooperbench"
        )
    return f"{registry}/{{repo}}:task{{task_id}}"


def _push(backend: DockerBackend, template: str, task: Task, say: Say) -> tuple[str, str]:
    from cooperbench.backends.gcp.machine_engine import sign_in

    found = backend.images.present(task)
    if found is None:
        missing = backend.images.names_of(task)[0]
        raise UserError(f"there is no image {missing} here: cooperbench images build")
    name = image_name(task, template)
    repository, _, tag = name.rpartition(":")
    say(f"pushing {name}")
    api = backend.engine.api
    with backend.engine.faults(f"pushing {name}"):
        api.tag(found.image_id, repository, tag)
        sign_in(api, [name])
        events = list(api.push(repository, tag=tag, stream=True, decode=True))
    for problem in (str(event["error"]) for event in events if event.get("error")):
        host = name.partition("/")[0]
        login = "gcloud auth configure-docker" if host.endswith("pkg.dev") else "docker login"
        said = printable(re.sub(r"\s+", " ", problem))[:300]
        raise InfraError(
            f"pushing {name}: {said}; is the repository there, and are you signed in ({login} {host})?"
        )
    return name, next(
        (str(one["aux"]["Digest"]) for one in events if "Digest" in one.get("aux", {})), ""
    )


COMMANDS = {"images": (add_arguments, execute)}
