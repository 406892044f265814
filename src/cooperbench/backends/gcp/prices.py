"""What machines cost, estimated: hours times list prices. The only place where prices of Google stand.

An estimate: prices depend on region, contract and usage, and those of spot machines change daily. The invoice is at
https://console.cloud.google.com/billing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.sandbox.contract import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cooperbench.backends.gcp.settings import GcpSettings

PRICES_DATE = "2026"
"""From memory, not checked against Google's list."""
DOLLARS_PER_HOUR = {
    "e2": (0.0218, 0.0029),
    "n1": (0.0316, 0.0042),
    "n2": (0.0316, 0.0042),
    "n2d": (0.0275, 0.0037),
    "t2d": (0.0275, 0.0037),
    "c2": (0.0340, 0.0046),
    "c3": (0.0340, 0.0046),
    "n4": (0.0305, 0.0034),
}
"""Of a processor and of a GB of memory, about, in us-central1 and without any discount."""
DISK_DOLLARS_PER_GB_HOUR = {"pd-standard": 0.04 / 730, "pd-balanced": 0.10 / 730, "pd-ssd": 0.17 / 730}
SPOT_SHARE = 0.4
"""Spot machines cost 9 to 40 % of the others: the most is reckoned."""
_MEMORY_GB = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
_SHARED_CORES = {"micro": (0.25, 1.0), "small": (0.5, 2.0), "medium": (1.0, 4.0)}
"""Of the family e2: the share of two processors that is paid for, and GB."""


class Kind(NamedTuple):
    """What decides about a machine's price."""

    machine_type: str
    spot: bool
    disk_type: str
    disk_gb: int


def kind_of(settings: GcpSettings) -> Kind:
    """Of agents' machines."""
    return Kind(settings.machine_type, settings.spot, settings.disk_type, settings.disk_gb)


def estimate(kind: Kind, machines: int, seconds: float) -> Estimate:
    """Of machines that ran for so long in all."""
    price = dollars_per_hour(kind)
    return Estimate(
        machines,
        "machine",
        round(seconds, 3),
        0.0 if price is None else round(seconds / 3600 * price, 4),
        round(seconds, 3) if price is None else 0.0,
        PRICES_DATE,
    )


def summed(estimates: Iterable[Estimate]) -> Estimate:
    parts = list(estimates)
    return Estimate(
        sum(part.count for part in parts),
        "machine",
        round(sum(part.seconds for part in parts), 3),
        round(sum(part.dollars for part in parts), 4),
        round(sum(part.unpriced_seconds for part in parts), 3),
        PRICES_DATE,
    )


def dollars_per_hour(kind: Kind) -> float | None:
    """Of one machine with its disk; None where its type is not in the table."""
    family, size = kind.machine_type.partition("-")[0], size_of(kind.machine_type)
    if family not in DOLLARS_PER_HOUR or size is None:
        return None
    cpus, memory_gb = size
    per_cpu, per_gb = DOLLARS_PER_HOUR[family]
    share = SPOT_SHARE if kind.spot else 1.0
    disk = DISK_DOLLARS_PER_GB_HOUR.get(kind.disk_type, DISK_DOLLARS_PER_GB_HOUR["pd-balanced"])
    return share * (cpus * per_cpu + memory_gb * per_gb) + kind.disk_gb * disk


def size_of(machine_type: str) -> tuple[float, float] | None:
    """Processors and GB: of `e2-standard-8`, `e2-medium`, or `n2-custom-4-8192`."""
    family, _, rest = machine_type.partition("-")
    if family == "e2" and rest in _SHARED_CORES:
        return _SHARED_CORES[rest]
    if usual := re.fullmatch(r"(standard|highmem|highcpu)-([0-9]+)", rest):
        cpus = int(usual[2])
        return cpus, cpus * _MEMORY_GB[usual[1]]
    if custom := re.fullmatch(r"custom-([0-9]+)-([0-9]+)(?:-ext)?", rest):
        return int(custom[1]), int(custom[2]) / 1024
    return None
