"""A harness for tests that end it from outside: killed_harness.py IMAGE. Opens two sandboxes, tells their names, waits."""

from __future__ import annotations

import sys
import time

from cooperbench.eval.backends.base import SandboxOptions
from cooperbench.eval.backends.docker import DockerBackend


def main(image: str) -> None:
    backend = DockerBackend()
    for network in ("none", "public"):
        options = SandboxOptions(network="public" if network == "public" else "none")
        sys.stdout.write(backend.create_sandbox(image, timeout=300, options=options).container + "\n")
    sys.stdout.flush()
    time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1])
