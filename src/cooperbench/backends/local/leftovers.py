"""For `cooperbench clean`: everything that killed processes of this user left on this machine."""

from __future__ import annotations

from cooperbench.backends.local.orphans import end_orphans
from cooperbench.backends.local.rundir import remove_leftovers
from cooperbench.settings import default_cache_dir
from cooperbench.temporary import remove_abandoned


def clean() -> list[str]:
    """Remove it; what it was, one line each."""
    folders = [*remove_leftovers(default_cache_dir()), *remove_abandoned()]
    return [*map(str, folders), *(f"process {pid}, a sandbox that never started" for pid in end_orphans())]
