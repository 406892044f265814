"""A harness for tests that end it from outside: killed_harness.py IMAGE. Opens a sandbox, tells its container, waits."""

from __future__ import annotations

import sys
import time

from cooperbench.backends.gcp import GCPBatchBackend


def main(image: str) -> None:
    backend = GCPBatchBackend()
    container = backend.create_sandbox(image, timeout=300).container
    # What is at Google has to go also where nobody knows of it any more.
    del backend
    sys.stdout.write(container + "\n")
    sys.stdout.flush()
    time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1])
