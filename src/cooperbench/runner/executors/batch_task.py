"""The program of a Google Batch task: run one order and write its events.

The job's folder of the bucket is mounted on the machine. Exit status 0 means that all events are in
the folder. After any other status Batch tries the task again.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import pickle
import platform
import signal
import sys
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cooperbench.backends.gcp.machine_engine import google_hosts
from cooperbench.dataset.image_names import image_name
from cooperbench.runner.executors.job import Event, JobOrder, run_job
from cooperbench.storage import write_json

FOLDER_VARIABLE = "COOPERBENCH_JOB_FOLDER"
JOB_VARIABLE = "COOPERBENCH_JOB"
ORDERS = "orders"
"""File with all orders together: content that they share, like a task's folder, is in it once."""
EVENTS = "events-"
_METADATA = "http://metadata.google.internal/computeMetadata/v1"
_TOKEN_URL = f"{_METADATA}/instance/service-accounts/default/token"


class _EventList:
    """A link that keeps the events of a job until it ends."""

    def __init__(self) -> None:
        self.owner = f"Batch task {os.environ.get('BATCH_TASK_INDEX')} on {platform.node()}"
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def may_start(self) -> bool:
        """Return True: evaluations have no budget."""
        return True


def main() -> int:
    """Run the order that the environment names; return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder, job = Path(os.environ[FOLDER_VARIABLE]), os.environ[JOB_VARIABLE]
    order = read_order(folder, job)
    os.environ.update(order.environment)
    _sign_in_to_registries({image_name(work.pair.task) for work in order.work})
    link = _EventList()
    # All tasks of the job share the folder, so that only one of them tests each golden patch.
    run_job(replace(order, references_dir=folder), link)
    if link.events[-1].get("error"):
        return 1
    write_json(folder / f"{EVENTS}{job}", link.events)
    return 0


def pack_orders(orders: Iterable[JobOrder]) -> bytes:
    """Return the orders of a job as the content of its `orders` file."""
    return zlib.compress(pickle.dumps({order.job: order for order in orders}))


def read_order(folder: Path, job: str) -> JobOrder:
    """Return one order from a job's folder."""
    # Python 3.13 pickles paths by the name of this module, which other versions do not have.
    sys.modules.setdefault("pathlib._local", pathlib)
    packed = zlib.decompress((folder / ORDERS).read_bytes())
    orders: dict[str, JobOrder] = pickle.loads(packed)  # noqa: S301  # written by our own driver
    return orders[job]


def _sign_in_to_registries(images: set[str]) -> None:
    """Let Docker pull images of the project's registry as the machine's service account."""
    for host in google_hosts(images):
        headers = {"Metadata-Flavor": "Google"}
        request = urllib.request.Request(_TOKEN_URL, headers=headers)  # noqa: S310  # a fixed URL
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  # a fixed URL
            token = json.load(response)["access_token"]
        credentials = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode("ascii")
        config = Path("~/.docker/config.json").expanduser()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"auths": {host: {"auth": credentials}}}), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
