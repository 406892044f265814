"""`cooperbench images`: the task images that the docker backend runs in, and the snapshots of the modal backend."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from cooperbench.cli.arguments import add_selection_arguments, whole_above_zero
from cooperbench.cli.containers import add_template_argument, use_template_argument
from cooperbench.dataset.discovery import discover, resolve_dataset_dir, scan_tasks
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.models import Task

ACTIONS = {
    "list": "which images there are, and what they are called",
    "pull": "get them from their registry, and make the ones for agents",
    "build": "build them from their Dockerfiles, and make the ones for agents",
    "push": "tag them for a registry of yours and send them there, for backends that pull",
    "clean": "remove the images for agents and those with installs; --built: also those that were built here",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), help=text)
    add_selection_arguments(parser)
    add_template_argument(parser)
    parser.add_argument(
        "--backend",
        choices=("docker", "modal"),
        default="docker",
        help="modal: list and clean the snapshots that it keeps (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object on stdout")
    parser.add_argument("--built", action="store_true", help="clean: also the images that were built here")
    parser.add_argument(
        "--registry",
        metavar="HOST/PATH",
        help="push: where to (default: the repository cooperbench of your Google Cloud project)",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=whole_above_zero,
        default=2,
        metavar="N",
        help="images at once (default: %(default)s)",
    )


def execute(args: argparse.Namespace) -> int:
    from cooperbench.backends.docker import DockerBackend

    chosen = args.action != "clean" or any(
        value is not None for value in (args.subset, args.repo, args.task_id, args.features, args.dataset_dir)
    )
    tasks = select_tasks(args) if chosen else None
    if args.backend == "modal":
        return _of_modal(args.action, tasks, as_json=args.json)
    use_template_argument(args)
    backend = DockerBackend()
    try:
        if args.action == "clean":
            return _clean(backend, tasks, built=args.built, as_json=args.json)
        assert tasks is not None
        if args.action == "list":
            return _list(backend, tasks, as_json=args.json)
        if args.action == "push":
            from cooperbench.cli.images_push import push_all

            return push_all(backend, tasks, registry=args.registry, jobs=args.jobs, as_json=args.json)
        make = _pull if args.action == "pull" else _build
        return _make_all(backend, tasks, make, jobs=args.jobs, as_json=args.json)
    finally:
        backend.close()


def _of_modal(action: str, tasks: Sequence[Task] | None, *, as_json: bool) -> int:
    """Modal itself pulls, builds and keeps images; what we keep there are snapshots with what runners install."""
    from cooperbench.backends.modal import ModalBackend
    from cooperbench.backends.modal.images import snapshot_files

    wanted = None if tasks is None else {task.label for task in tasks}
    if action == "list":
        rows = [content for _, content in snapshot_files(wanted)]
        for row in [] if as_json else rows:
            _say(printable(f"{row['task']}  with what its runner installs: {row['image']}"))
        _say(json.dumps({"images": rows}, indent=2) if as_json else plural(len(rows), "snapshot"))
        return 0
    if action != "clean":
        raise UserError(f"images {action} is not for Modal, which does that when a run needs it")
    backend = ModalBackend()
    try:
        removed = backend.remove_snapshots(wanted)
    finally:
        backend.close()
    _say(
        json.dumps({"removed": removed}, indent=2)
        if as_json
        else f"removed {plural(len(removed), 'snapshot')}"
    )
    return 0


def select_tasks(args: argparse.Namespace) -> list[Task]:
    dataset_dir = resolve_dataset_dir(args.dataset_dir)
    if args.subset is None and args.features is None:
        return list(scan_tasks(dataset_dir, args.repo, args.task_id).tasks)
    found = discover(
        dataset_dir, subset=args.subset, repo=args.repo, task_id=args.task_id, features=args.features
    )
    return list(dict.fromkeys(pair.task for pair in found.pairs))


def _list(backend: DockerBackend, tasks: Sequence[Task], *, as_json: bool) -> int:
    from cooperbench.backends.docker.images import prepared_name

    rows: list[dict[str, Any]] = []
    for task in tasks:
        found = backend.images.present(task)
        agents = prepared_name(task, found) if found else None
        rows.append(
            {
                "task": task.label,
                "image": found.name if found else backend.images.names_of(task)[0],
                "present": found is not None,
                "digest": found.digest if found else None,
                "agent_image": agents,
                "agent_image_present": bool(agents and backend.images.find(agents)),
                "images_with_installs": backend.images.layers_with_installs(task),
            }
        )
    if as_json:
        _say(json.dumps({"engine": backend.engine.where, "images": rows}, indent=2))
        return 0
    for row in rows:
        state = f"{row['digest']}" if row["present"] else "missing"
        agents_too = "" if row["agent_image_present"] or not row["present"] else "  (none for agents yet)"
        _say(printable(f"{row['task']}  {row['image']}  {state}{agents_too}"))
        for layer in row["images_with_installs"]:
            _say(printable(f"  with what its runner installs: {layer}"))
    there = sum(1 for row in rows if row["present"])
    missing = "; get them: cooperbench images pull, or cooperbench images build" if there < len(rows) else ""
    _say(f"{there} of {plural(len(rows), 'image')} there{missing}")
    return 0


def _pull(backend: DockerBackend, task: Task, say: Callable[[str], None]) -> None:
    backend.images.pull_task(task, say)


def _build(backend: DockerBackend, task: Task, say: Callable[[str], None]) -> None:
    backend.images.build(task, say)


def _make_all(
    backend: DockerBackend,
    tasks: Sequence[Task],
    make: Callable[[DockerBackend, Task, Callable[[str], None]], None],
    *,
    jobs: int,
    as_json: bool,
) -> int:
    """Each by itself: one that fails does not keep the others from being made."""
    backend.check()  # one clear line, before the work is dealt out

    def work(task: Task) -> dict[str, Any]:
        def say(line: str) -> None:
            sys.stderr.write(printable(f"{task.label}: {line}") + "\n")

        try:
            make(backend, task, say)
            image = backend.prepare(task, say)
        except CooperBenchError as error:
            say(f"failed: {error}")
            return {"task": task.label, "error": str(error)}
        say(f"ready: {image.reference} {image.digest}")
        return {"task": task.label, "image": image.reference, "digest": image.digest}

    with ThreadPoolExecutor(jobs, thread_name_prefix="image") as pool:
        done = list(pool.map(work, tasks))
    failed = sum(1 for row in done if "error" in row)
    if as_json:
        _say(json.dumps({"engine": backend.engine.where, "images": done}, indent=2))
    else:
        _say(f"{len(done) - failed} of {plural(len(done), 'image')} ready")
    return 1 if failed else 0


def _clean(backend: DockerBackend, tasks: Sequence[Task] | None, *, built: bool, as_json: bool) -> int:
    wanted = None if tasks is None else {task.label for task in tasks}
    removed = backend.images.remove_made(wanted, built=built)
    if as_json:
        _say(json.dumps({"engine": backend.engine.where, "removed": removed}, indent=2))
    else:
        for name in removed:
            _say(f"removed {printable(name)}")
        _say(f"removed {plural(len(removed), 'image')}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
