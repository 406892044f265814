"""Running `covert_probe.py` in two sandboxes.

Also a program: `python -m tests.support.attacks.covert CACHE_DIR` prints what crosses between two local sandboxes of
the user who runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local import LocalBackend

if TYPE_CHECKING:
    from cooperbench.sandbox.base_sandbox import Sandbox

PROBE = Path(__file__).with_name("covert_probe.py")


def noticed_between(sender: Sandbox, receiver: Sandbox) -> list[str]:
    """Return what the receiver learns from what the sender does."""
    code = PROBE.read_text("utf-8")
    receive = receiver.open_stream(["python3", "-c", code, "receive"])
    assert receive.stdout.readline() == b"watching\n"
    send = sender.open_stream(["python3", "-c", code, "send"])
    assert send.stdout.readline() == b"sent\n"
    receive.stdin.write(b"\n")
    noticed: list[str] = json.loads(receive.stdout.readline())
    # Let them end by themselves: to end them from outside would wait for their leases.
    for stream in (send, receive):
        stream.stdin.write(b"\n")
        stream.stdout.read()
    for stream in (send, receive):
        stream.close()
    return noticed


def kinds(noticed: list[str]) -> set[str]:
    """Return the kinds of channels: what stands before a path."""
    return {name.partition(" /")[0] for name in noticed}


def main() -> None:
    backend = LocalBackend(cache_dir=sys.argv[1])
    sender, receiver = (backend.create_sandbox("host") for _ in range(2))
    print(json.dumps(noticed_between(sender, receiver)))
    backend.close()


if __name__ == "__main__":
    main()
