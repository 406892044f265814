"""The bare runners of published images: what they fetch, and what becomes of them without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.image_names import image_name
from cooperbench.sandbox.contract import CommandResult, NetworkPolicy, SandboxOptions
from tests.support.published.packages import NOISE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cooperbench.backends.docker import DockerBackend
    from cooperbench.models import Feature, Task
    from tests.external.published.conftest import Published

    Publish = Callable[..., Published]
    Run = Callable[[Feature, bool], CommandResult]

LAST_WORDS = "Repository cleaned up.\n"


@pytest.fixture
def opened(docker: DockerBackend) -> Iterator[Callable[[Task, NetworkPolicy], Run]]:
    """A sandbox of a task's image, in which a feature's tests run with its golden patch or without."""
    sandboxes = []

    def opened(task: Task, network: NetworkPolicy) -> Run:
        sandbox = docker.create_sandbox(
            image_name(task), options=SandboxOptions("evaluation", network)
        )
        sandboxes.append(sandbox)

        def run(feature: Feature, golden: bool) -> CommandResult:
            sandbox.write_file("/patches/tests.patch", feature.tests.read_bytes())
            sandbox.write_file(
                "/patches/feature.patch", feature.patch.read_bytes() if golden else b""
            )
            return sandbox.run(["bash", "/usr/local/bin/runner.sh", "tests.patch", "feature.patch"])

        return run

    yield opened
    for sandbox in sandboxes:
        sandbox.terminate()


def check_features(task: Task, run: Run) -> None:
    """Each one's tests pass with its golden patch alone, and fail without."""
    for feature in task.features:
        result = run(feature, True)
        assert result.returncode == 0, result.stdout_read() + result.stderr_read()
        assert result.stdout_read().endswith(LAST_WORDS)
    result = run(task.features[0], False)
    assert result.returncode == 1 or "test result: FAILED" in result.stdout_read()
    assert result.stdout_read().endswith(LAST_WORDS)


@pytest.mark.parametrize(
    ("repo", "fetched", "complaint"),
    [
        ("pip_task", "/files/setuptools", "No matching distribution found for setuptools"),
        ("uv_task", "/files/noise", "Network is unreachable"),
        ("pnpm_task", "/npm/pnpm/-/", "ENETUNREACH"),
    ],
)
def test_installs_on_every_call(
    repo: str,
    fetched: str,
    complaint: str,
    published: Publish,
    opened: Callable[[Task, NetworkPolicy], Run],
) -> None:
    here = published(repo)
    task = here.tasks[repo]
    here.index.reset()
    check_features(task, opened(task, "public"))
    assert here.index.traffic(fetched).requests
    assert here.index.traffic().bytes > NOISE_BYTES

    here.index.reset()
    result = opened(task, "none")(task.features[0], True)
    assert result.returncode != 0
    assert complaint in result.stderr_read()
    assert result.stdout_read().endswith(LAST_WORDS)
    assert here.index.traffic() == (0, 0)


@pytest.mark.parametrize("repo", ["go_task", "rust_task"])
def test_needs_no_network(
    repo: str, published: Publish, opened: Callable[[Task, NetworkPolicy], Run]
) -> None:
    task = published(repo).tasks[repo]
    check_features(task, opened(task, "none"))
