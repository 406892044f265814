"""A harness for tests that end it from outside: opens two sandboxes, tells their ids, waits."""

from __future__ import annotations

import sys
import time

from cooperbench.backends.modal import ModalBackend


def main(image: str) -> None:
    backend = ModalBackend()
    for _ in range(2):
        sys.stdout.write(backend.create_sandbox(image, timeout=300).name + "\n")
    sys.stdout.flush()
    time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1])
