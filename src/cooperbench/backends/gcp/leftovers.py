"""What killed processes of ours left at Google, and its removal. Nothing that is not labelled by us is touched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.labels import SESSION, host_filter, is_leftover
from cooperbench.temporary import remove_abandoned

if TYPE_CHECKING:
    from cooperbench.backends.gcp.compute import Compute

_ON_ITS_WAY = "STOPPING"
"""Being deleted, or shutting down: the next time tells."""
_SHUT_DOWN = "TERMINATED"
_log = logging.getLogger("cooperbench")


def remove_leftovers(compute: Compute) -> list[str]:
    """Delete the machines of processes of this user and machine that are gone; their disks go with them."""
    remove_abandoned()
    return compute.delete_all(
        machine
        for machine in compute.listed(host_filter())
        if machine.status != _ON_ITS_WAY and is_leftover(machine.labels, running=machine.status != _SHUT_DOWN)
    )


def remove_session(compute: Compute, session: str) -> list[str]:
    """Delete whatever one backend object has made and not deleted itself."""
    wanted = f'labels.{SESSION}="{session}"'
    return compute.delete_all(
        machine
        for machine in compute.listed(wanted)
        if machine.status != _ON_ITS_WAY and machine.labels.get(SESSION) == session
    )


def clean() -> list[str]:
    """For `cooperbench clean --backend gcp`: connect, remove leftovers, tell their names."""
    from cooperbench.backends.gcp.compute import Compute
    from cooperbench.backends.gcp.faults import MayNot
    from cooperbench.backends.gcp.firewall import Firewall, remove_leftover_rules
    from cooperbench.backends.gcp.settings import read_settings
    from cooperbench.eval.batch.leftovers import remove_leftover_jobs

    settings = read_settings()
    removed = [f"machine {name}" for name in remove_leftovers(Compute(settings))]
    try:
        removed += [f"firewall rule {name}" for name in remove_leftover_rules(Firewall(settings))]
    except MayNot as error:
        _log.warning("%s", error)
    return removed + [f"job {name}" for name in remove_leftover_jobs(settings)]
