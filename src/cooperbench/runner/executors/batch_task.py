"""What a task of a Batch job does on its machine, where the job's folder of the bucket is mounted: one order.

Exit code 0 says that all events of the job are in the folder. After any other, Batch tries the task again.
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
from cooperbench.runner.executors.job import Event, JobOrder, work_on
from cooperbench.storage import write_json

FOLDER_VARIABLE = "COOPERBENCH_JOB_FOLDER"
JOB_VARIABLE = "COOPERBENCH_JOB"
ORDERS = "orders"
"""All in one: what several of them have in common, like the folder of a task, is in it once."""
EVENTS = "events-"
_TOKEN_URL = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
)


class _Gathered:
    """The events of a job, until it ends."""

    def __init__(self) -> None:
        self.owner = f"Batch task {os.environ.get('BATCH_TASK_INDEX')} on {platform.node()}"
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def may_start(self) -> bool:
        return True


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder, job = Path(os.environ[FOLDER_VARIABLE]), os.environ[JOB_VARIABLE]
    order = read_order(folder, job)
    os.environ.update(order.environment)
    _sign_in_to_registries({image_name(pair.task) for _, pair in order.work})
    link = _Gathered()
    # All tasks of the job have the folder in common: not each of them has to test the golden patches.
    work_on(replace(order, references_dir=folder), link)
    if link.events[-1].get("error"):
        return 1
    write_json(folder / f"{EVENTS}{job}", link.events)
    return 0


def pack_orders(orders: Iterable[JobOrder]) -> bytes:
    return zlib.compress(pickle.dumps({order.job: order for order in orders}))


def read_order(folder: Path, job: str) -> JobOrder:
    # Paths that Python 3.13 has pickled are of this module, which others do not have.
    sys.modules.setdefault("pathlib._local", pathlib)
    packed = zlib.decompress((folder / ORDERS).read_bytes())
    orders: dict[str, JobOrder] = pickle.loads(packed)  # noqa: S301  # our own
    return orders[job]


def _sign_in_to_registries(images: set[str]) -> None:
    """Images in the project's own registry are pulled as the machine's service account."""
    for host in google_hosts(images):
        request = urllib.request.Request(_TOKEN_URL, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            token = json.load(answer)["access_token"]
        word = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode("ascii")
        config = Path("~/.docker/config.json").expanduser()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"auths": {host: {"auth": word}}}), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
