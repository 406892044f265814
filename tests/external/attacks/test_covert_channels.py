"""Containers share a kernel: nothing that one does to files, sockets or memory is noticed in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.attacks.covert import kinds, noticed_between

if TYPE_CHECKING:
    from cooperbench.backends.docker import DockerBackend


def test_nothing_crosses_between_containers(docker: DockerBackend, base_image: str) -> None:
    sender, receiver = (docker.create_sandbox(base_image) for _ in range(2))
    try:
        assert noticed_between(sender, receiver) == []
        assert kinds(noticed_between(receiver, receiver)) >= {"flock", "loopback", "file in"}, (
            "the probe can notice something"
        )
    finally:
        sender.terminate()
        receiver.terminate()
