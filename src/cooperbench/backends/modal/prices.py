"""What sandboxes cost, estimated: seconds times what was reserved. The only place where prices of Modal stand.

An estimate, as Modal bills the larger of what was reserved and what was used, and by contract, region and plan. The
invoice is at https://modal.com/settings/usage.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.sandbox.contract import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable

PRICES_DATE = "2026-06-27"
"""Of the list prices in dollars. Those of cores, T4, H100 and B200 agree with what others quoted of
https://modal.com/pricing then; those of memory and the other GPUs have not been checked against it."""
DOLLARS_PER_CORE_SECOND = 0.00003942
"""Of a sandbox: physical cores, three times the price of a function's."""
DOLLARS_PER_GIB_SECOND = 0.00000672
DOLLARS_PER_GPU_SECOND = {
    "T4": 0.000164,
    "L4": 0.000222,
    "A10": 0.000306,
    "A10G": 0.000306,
    "L40S": 0.000542,
    "A100": 0.000583,
    "A100-40GB": 0.000583,
    "A100-80GB": 0.000694,
    "H100": 0.001097,
    "H200": 0.001261,
    "B200": 0.001736,
}


@dataclass(frozen=True)
class Rate:
    """What a sandbox reserves."""

    cores: float
    memory_gib: float
    gpu: str = ""
    """As Modal takes it, e.g. `H100` or `A100-80GB:2`."""

    @property
    def dollars_per_second(self) -> float | None:
        """None where the price of the GPU is not known."""
        base = self.cores * DOLLARS_PER_CORE_SECOND + self.memory_gib * DOLLARS_PER_GIB_SECOND
        if not self.gpu:
            return base
        kind, _, count = self.gpu.upper().partition(":")
        price = DOLLARS_PER_GPU_SECOND.get(kind.rstrip("!"))
        return None if price is None else base + price * int(count or 1)


class Meter:
    """Adds up; asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandboxes = 0
        self._seconds: defaultdict[Rate, float] = defaultdict(float)

    def started(self) -> None:
        with self._lock:
            self._sandboxes += 1

    def ended(self, rate: Rate, seconds: float) -> None:
        with self._lock:
            self._seconds[rate] += seconds

    def estimate(self, still_open: Iterable[tuple[Rate, float]] = ()) -> Estimate:
        with self._lock:
            sandboxes, seconds = self._sandboxes, self._seconds.copy()
        for rate, more_seconds in still_open:
            seconds[rate] += more_seconds
        priced = {rate: rate.dollars_per_second for rate in seconds}
        return Estimate(
            sandboxes,
            "sandbox",
            round(sum(seconds.values()), 3),
            round(sum(seconds[rate] * (price or 0.0) for rate, price in priced.items()), 6),
            round(sum(seconds[rate] for rate, price in priced.items() if price is None), 3),
            PRICES_DATE,
        )
