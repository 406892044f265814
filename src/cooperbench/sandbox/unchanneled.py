"""What backends share that run a command without a channel: keeping its output in bounds, and ending it by its mark."""

from __future__ import annotations

from importlib import resources


class Kept:
    """The first and the last half of an output, and how much was left out between."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._first = bytearray()
        self._last = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._first)
        self._first += data[:room] if room > 0 else b""
        self._last += data[max(room, 0) :]
        if len(self._last) > 2 * self._half + 65536:
            del self._last[: len(self._last) - self._half]

    @property
    def data(self) -> bytes:
        if len(self._last) > self._half:
            return bytes(self._first + self._last[len(self._last) - self._half :])
        return bytes(self._first + self._last)

    @property
    def cut(self) -> int:
        return self._total - len(self.data)


def kill_script() -> str:
    """For `sh -c SCRIPT kill MARK`: ends every process that has the mark in its environment."""
    return resources.files(__package__).joinpath("kill_marked.sh").read_text("utf-8")
