"""Processes of local sandboxes, as the host finds them."""

from __future__ import annotations

from pathlib import Path


def sandbox_processes(mounted: str) -> dict[int, str]:
    """Those that see a mount with this in its description in a namespace of their own, and all below them.

    The former are bubblewrap's outer processes. Inside of a sandbox no mount tells where it comes from.
    """
    ours = Path("/proc/self/ns/mnt").readlink()
    words: dict[int, str] = {}
    below: dict[int, list[int]] = {}
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            elsewhere = (entry / "ns/mnt").readlink() != ours
            sees = elsewhere and mounted in (entry / "mountinfo").read_text()
        except OSError:
            continue
        words[int(entry.name)] = line
        below.setdefault(parent, []).append(int(entry.name))
        found += [int(entry.name)] * sees
    for pid in found:
        found += [child for child in below.get(pid, ()) if child not in found]
    return {pid: words[pid] for pid in found}
