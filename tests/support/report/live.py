"""A live server of a run that still goes on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cooperbench.report.page.live_server import LiveServer
from tests.support.report.factory import Kind, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAIRS = {"repo_task": {1: [(1, 2), (1, 3)]}}


@contextmanager
def served(*roots: Path) -> Iterator[LiveServer]:
    server = LiveServer(lambda: roots, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_with(logs: Path, kind: Kind) -> Path:
    """A run whose second pair ends so, or has not ended yet."""
    return write_run(
        logs, "going", PAIRS, lambda key: "passed" if key.features == (1, 2) else kind
    ).root


def finish(logs: Path, kind: Kind) -> None:
    """The second pair comes to its end."""
    write_run(logs, "going", {"repo_task": {1: [(1, 3)]}}, kind)
