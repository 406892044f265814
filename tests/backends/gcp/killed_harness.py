"""A harness for tests that end it from outside: killed_harness.py IMAGE FOLDER.

Opens a sandbox that shares a git remote, tells its container, waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cooperbench.backends.gcp import GCPBatchBackend
from cooperbench.sandbox.contract import SandboxOptions
from cooperbench.team.git_remote import make_remote


def main(image: str, folder: Path) -> None:
    backend = GCPBatchBackend()
    reaches = make_remote(backend, folder / "hub", ["agent1", "agent2"]).open()
    options = SandboxOptions("agent", reaches=reaches)
    container = backend.create_sandbox(image, timeout=300, options=options).container
    # What is at Google has to go also where nobody knows of it any more.
    del backend
    sys.stdout.write(container + "\n")
    sys.stdout.flush()
    time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
