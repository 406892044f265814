"""How a process of the command line ends: at once when its work is done.

Once a model has been asked, the interpreter's own end takes seconds (it takes apart thousands of modules), and it may
never come: a thread that it stops in the middle of an import keeps the import's lock, and finalizers of LiteLLM wait
for that lock. So what is registered with `atexit` is done as always, and then the process is gone. Not for code that
is called inside somebody else's process.
"""

from __future__ import annotations

import atexit
import os
import sys


class Leaving:
    """Make it before anything else registers with `atexit`: what is registered first comes last."""

    def __init__(self) -> None:
        self.code: int | None = None
        """The exit code; without one the interpreter ends as it always does."""
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            # The interpreter meets it, too, and has a message and an exit code for it.
            return
        os._exit(self.code)
