"""Third-party backends: their optional methods are used if they exist, else the defaults."""

from __future__ import annotations

from pathlib import Path

from cooperbench.dataset.image_names import image_name
from cooperbench.models import Image, Task
from cooperbench.sandbox.backend import Backend, adapted_backend
from cooperbench.sandbox.contract import Capabilities, SandboxOptions, SandboxProtocol

TASK = Task(repo="tiny_task", task_id=7, path=Path("tiny"), feature_ids=(1, 2))


class SmallBackend:
    """A backend with only the documented method."""

    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> SandboxProtocol:
        raise NotImplementedError(f"{image} {timeout} {workdir}")


class RichBackend(SmallBackend):
    """A backend with optional methods, but without the base class."""

    capabilities = Capabilities(streams=True)
    about = "in a good mood"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare(self, task: Task) -> Image:
        return Image("prepared")

    def check(self) -> None:
        self.calls.append("check")

    def close(self) -> None:
        self.calls.append("close")


class OwnBackend(Backend):
    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> SandboxProtocol:
        raise NotImplementedError


def test_defaults() -> None:
    backend = adapted_backend(SmallBackend())
    assert backend.capabilities == Capabilities()
    assert backend.about == "usable"
    assert backend.prepare(TASK) == Image(image_name(TASK))
    backend.check()
    backend.interrupt()
    backend.close()
    assert backend.resource_use() is None


def test_optional_methods_are_used() -> None:
    rich = RichBackend()
    backend = adapted_backend(rich)
    assert backend.capabilities.streams
    assert backend.about == "in a good mood"
    assert backend.prepare(TASK) == Image("prepared")
    backend.check()
    backend.interrupt()
    backend.close()
    assert rich.calls == ["check", "close"]


def test_a_capabilities_attribute_of_another_type_is_ignored() -> None:
    odd = SmallBackend()
    odd.__dict__["capabilities"] = ["streams"]
    assert adapted_backend(odd).capabilities == Capabilities()


def test_our_own_backends_are_not_wrapped() -> None:
    backend = OwnBackend()
    assert adapted_backend(backend) is backend
