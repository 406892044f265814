"""`cooperbench images --backend local`: the images of this machine's cache."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.backends.images.archives import export_images, import_images
from cooperbench.backends.images.clean import Selection, remove_images, total_size
from cooperbench.backends.images.pull import NoProgress, Progress
from cooperbench.backends.images.settings import read_settings
from cooperbench.backends.images.store import StoredImage
from cooperbench.backends.local import LocalBackend
from cooperbench.backends.setting_fields import byte_size
from cooperbench.cli import arguments
from cooperbench.dataset.discovery import is_demo_task
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.models import Task
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_DAY_SECONDS = 24 * 3600
Result = tuple[dict[str, Any], list[str]]
"""The result of an action: for machines, and as lines for people."""


def run_action(args: argparse.Namespace, tasks: Sequence[Task], *, all_images: bool) -> Result:
    """Run an action on the images of tasks, or of all images where none are selected."""
    backend = LocalBackend(image_template=args.image_template)
    try:
        match args.action:
            case "list":
                return _list_images(backend, tasks)
            case "pull":
                return _pull_images(backend, tasks)
            case "clean":
                return _clean_images(backend, tasks, args, all_images=all_images)
            case "import":
                return _import_images(backend, args)
            case "export":
                return _export_images(backend, tasks, args)
            case _:
                raise UserError(
                    f"images {args.action} needs Docker; build elsewhere, then"
                    " cooperbench images import FILE"
                )
    finally:
        backend.close()


@dataclass
class _ListedImage:
    """One line of `images list`."""

    task: str | None
    """None for an image of no task."""
    image: str
    present: bool
    digest: str | None
    bytes: int

    def line(self) -> str:
        """Return the image as a line for people."""
        state = "missing"
        if self.present:
            state = f"{self.bytes / 1e6:,.0f} MB  {self.digest}"
        return f"{self.task or '-'}  {printable(self.image)}  {state}"


def _list_images(backend: LocalBackend, tasks: Sequence[Task]) -> Result:
    store = backend.images.store
    rows: list[_ListedImage] = []
    names_of_tasks: set[str] = set()
    for task in tasks:
        names = backend.images.names_of(task)
        names_of_tasks.update(names)
        rows.append(_list_image(backend, task.label, names[-1], backend.images.present(task)))
    others = [image for image in store.images() if image.name not in names_of_tasks]
    rows += [_list_image(backend, None, image.name, image) for image in others]
    present = sum(1 for row in rows if row.present)
    size = total_size(store)
    summary = f"{present:,} of {plural(len(rows), 'image')} present, {size / 1e9:,.1f} GB"
    lines = [row.line() for row in rows]
    return {"images": [vars(row) for row in rows], "bytes": size}, [*lines, summary]


def _list_image(
    backend: LocalBackend, task: str | None, name: str, image: StoredImage | None
) -> _ListedImage:
    if image is None:
        return _ListedImage(task, name, present=False, digest=None, bytes=0)
    layers = set(image.layers)
    size = sum(backend.images.store.layer_size(diff_id) for diff_id in layers)
    return _ListedImage(task, image.name, present=True, digest=image.digest, bytes=size)


def _pull_images(backend: LocalBackend, tasks: Sequence[Task]) -> Result:
    """Pull the images of tasks and make their layers. A failure does not stop the others."""
    backend.check()
    rows: list[dict[str, Any]] = []
    for task in tasks:
        if is_demo_task(task):
            raise UserError(f"{task.label} belongs to the demo, which needs no images on local")
        rows.append(_try_pull(backend, task))
    ready = sum(1 for row in rows if "error" not in row)
    return {"images": rows}, [f"{ready:,} of {plural(len(rows), 'image')} ready"]


def _try_pull(backend: LocalBackend, task: Task) -> dict[str, Any]:
    try:
        image = backend.images.present(task)
        if image is None:
            with _shown_progress() as progress:
                image = backend.images.pull(task, progress)
        backend.prepare(task)
    except CooperBenchError as error:
        arguments.print_note(f"{task.label}: failed: {error}")
        return {"task": task.label, "error": str(error)}
    arguments.print_note(f"{task.label}: ready: {image.name} {image.digest}")
    return {"task": task.label, "image": image.name, "digest": image.digest}


def _clean_images(
    backend: LocalBackend, tasks: Sequence[Task], args: argparse.Namespace, *, all_images: bool
) -> Result:
    names: set[str] = set()
    for task in tasks:
        names.update(backend.images.names_of(task))
    selection = Selection(
        names=None if all_images else names,
        unused_seconds=(args.older_than or 0) * _DAY_SECONDS,
        max_bytes=_read_size(args.max_size),
    )
    removed = remove_images(backend.images.store, selection)
    backend.remove_lost_snapshots()
    lines = [f"removed {name}" for name in removed.images]
    lines += [f"{name} is in use and stays" for name in removed.in_use]
    count = plural(len(removed.images), "image")
    lines.append(f"removed {count}, {removed.freed_bytes / 1e9:,.1f} GB")
    return {"removed": removed.images, "in_use": removed.in_use}, lines


def _read_size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return byte_size(text)
    except ValueError as error:
        raise UserError(f"--max-size: {error}") from None


def _import_images(backend: LocalBackend, args: argparse.Namespace) -> Result:
    if args.file is None:
        raise UserError("images import needs a file: cooperbench images import FILE")
    path = Path(args.file)
    if not path.exists():
        raise UserError(f"{path} does not exist")
    images = import_images(backend.images.store, path, args.name, NoProgress())
    rows = [{"image": image.name, "digest": image.digest} for image in images]
    lines = [f"{printable(image.name)}  {image.digest}" for image in images]
    return {"images": rows}, [*lines, f"imported {plural(len(images), 'image')}"]


def _export_images(
    backend: LocalBackend, tasks: Sequence[Task], args: argparse.Namespace
) -> Result:
    if args.file is None:
        raise UserError("images export needs a file: cooperbench images export FILE -s SUBSET")
    path = Path(args.file)
    names = [backend.images.names_of(task)[-1] for task in tasks]
    with _shown_progress() as progress:
        export_images(names, path, read_settings(), progress)
    lines = [
        f"exported {plural(len(names), 'image')}; there: cooperbench images import {path.name}"
    ]
    return {"file": str(path), "images": [{"image": name} for name in names]}, lines


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Show a bar on a terminal; nothing else where nobody watches."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (*RichProgress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars)


class _Bar:
    """A bar for one image after the other."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._done = 0
        self._bar = bars.add_task("", total=None)

    def start(self, image: str, total_bytes: int) -> None:
        """Show another image."""
        self._done = 0
        self._bars.update(
            self._bar, description=printable(image), total=total_bytes or None, completed=0
        )

    def add_bytes(self, count: int) -> None:
        """Move on."""
        with self._lock:
            self._done += count
            self._bars.update(self._bar, completed=self._done)
