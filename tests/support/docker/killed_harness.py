"""A harness for tests that end it from outside: killed_harness.py IMAGE.

Opens two sandboxes, tells their names, waits.
"""

from __future__ import annotations

import sys
import time

from cooperbench.backends.docker import DockerBackend
from cooperbench.sandbox.contract import SandboxOptions

COUNT = 2


def main(image: str) -> None:
    backend = DockerBackend()
    for network in ("none", "public"):
        options = SandboxOptions(network="public" if network == "public" else "none")
        backend.create_sandbox(image, timeout=300, options=options)
    filters = {"label": [f"cooperbench.session={backend.session.name}"], "status": ["running"]}
    while len(found := backend.engine.api.containers(filters=filters)) < COUNT:
        time.sleep(0.05)
    sys.stdout.writelines(container["Names"][0].lstrip("/") + "\n" for container in found)
    sys.stdout.flush()
    time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1])
