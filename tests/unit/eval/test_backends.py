"""The import paths and the example of docs/backends.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cooperbench.settings import import_user_module

DOCS = Path(__file__).parents[3] / "docs" / "backends.md"


def test_documented_classes_can_be_imported() -> None:
    paths = re.findall(r"`(cooperbench\.eval\.backends\.\w+)\.(\w+Backend)`", DOCS.read_text())
    assert [name for _, name in paths] == [
        "LocalBackend",
        "DockerBackend",
        "ModalBackend",
        "GCPBatchBackend",
    ]
    for module, name in paths:
        assert isinstance(vars(import_user_module(module))[name], type)


def test_the_conformance_example_runs() -> None:
    """It fails in the backend of the example, not because of a name that is not defined."""

    class MyBackend:
        def create_sandbox(self, image: str, timeout: int = 600, workdir: str = "/") -> Any:
            raise RuntimeError(f"asked for {image}, {timeout}, {workdir}")

    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "SandboxConformance" in block]
    example = example.replace("    @pytest.fixture\n", "")
    names: dict[str, Any] = {"MyBackend": MyBackend}
    exec(example, names)
    with pytest.raises(Exception, match="asked for image, 300, /workspace"):
        names["TestMine"]().make_sandbox()()
