"""Sandboxes whose system is an image: the conformance suites, and the attempts to get out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.local import LocalBackend
from cooperbench.errors import UserError
from cooperbench.sandbox.conformance import SandboxConformance
from cooperbench.sandbox.contract import SandboxOptions
from tests.external.backends.local.conftest import SYSTEM
from tests.support.images.built import Layout, base_layer
from tests.support.images.tarballs import Tarball
from tests.support.sandbox.escape import ATTEMPTS, SECRET, Host
from tests.support.team.tool_conformance import ToolConformance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cooperbench.backends.local.sandbox import LocalSandbox
    from cooperbench.sandbox.contract import Sandbox

OWN_SYSTEM = {"write to /usr", "write to /etc", "write to a library", "read shadow"}
"""Attempts that only reach files of the image, which are the sandbox's own."""


class TestImage(ToolConformance, SandboxConformance):
    isolated = True

    @pytest.fixture
    def make_sandbox(self, local_images: LocalBackend) -> Callable[[], Sandbox]:
        return lambda: local_images.create_sandbox(SYSTEM, timeout=300)


@pytest.fixture(scope="module")
def host(
    local_images: LocalBackend, image_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    secret = tmp_path_factory.mktemp("home") / "secret"
    secret.write_text(SECRET)
    host = Host(local_images, image_cache, secret)
    yield host
    host.close()


@pytest.fixture(scope="module")
def sandbox(local_images: LocalBackend, host: Host) -> Iterator[LocalSandbox]:
    sandbox = local_images.create_sandbox(SYSTEM, options=SandboxOptions())
    yield sandbox
    sandbox.terminate()


@pytest.mark.parametrize("attempt", sorted(set(ATTEMPTS) - OWN_SYSTEM))
def test_no_way_out(attempt: str, sandbox: LocalSandbox, host: Host) -> None:
    result = sandbox.run(["bash", "-c", ATTEMPTS[attempt]], env=host.env, timeout_seconds=60)
    assert result.returncode != 0, f"{attempt}: {result.stdout_read()}"


def test_changes_of_the_system_stay_in_one_sandbox(local_images: LocalBackend) -> None:
    first = local_images.create_sandbox(SYSTEM)
    second = local_images.create_sandbox(SYSTEM)
    assert first.run(["bash", "-c", "rm /usr/bin/env && echo x >/etc/issue"]).returncode == 0
    assert second.run(["env", "grep", "-c", "Debian", "/etc/issue"]).returncode == 0
    first.terminate()
    second.terminate()


def test_the_configuration_of_the_image_is_used(local_images: LocalBackend) -> None:
    sandbox = local_images.create_sandbox(SYSTEM)
    result = sandbox.run(["bash", "-c", "echo $FROM_IMAGE $HOME; cat /etc/debian_version; id -u"])
    sandbox.terminate()
    words = result.stdout_read().split()
    assert (words[0], words[1], words[2][:3], words[3]) == ("yes", "/root", "12.", "0")


def test_the_system_of_the_host_is_not_there(local_images: LocalBackend) -> None:
    sandbox = local_images.create_sandbox(SYSTEM)
    code = sandbox.run(["bash", "-c", "ls /usr/local/bin | grep . || ls /root | grep ."]).returncode
    sandbox.terminate()
    assert code != 0


def test_an_image_that_is_not_there(image_cache: Path, image_dataset: Path) -> None:
    backend = LocalBackend(dataset_dir=image_dataset, cache_dir=image_cache)
    with pytest.raises(UserError, match="images list"):
        backend.create_sandbox("cooperbench-test/other:1")


@pytest.mark.parametrize("up", ["..", "../../../../../..", "/oldroot", ""])
def test_an_image_with_links_where_something_is_mounted(up: str, tmp_path: Path) -> None:
    """Bubblewrap follows links: the image must not choose where folders of the host are made."""
    outside = tmp_path / "outside"
    outside.mkdir()
    links = Tarball()
    for name in ("etc", "proc", "dev", "cooperbench", "patches", "tmp"):
        links.symlink(name, f"{up}{outside}/{name}")
    layout = Layout(tmp_path / "layout")
    layout.add_image(SYSTEM, [base_layer(), links.data])
    backend = LocalBackend(cache_dir=tmp_path / "cache")
    import_images(backend.images.store, layout.folder, None, NoProgress())
    sandbox = backend.create_sandbox(SYSTEM)
    sandbox.write_file("/patches/tests.patch", b"1")
    assert sandbox.run_last(["cat", "/patches/tests.patch"], timeout_seconds=60).stdout == b"1"
    backend.close()
    assert list(outside.iterdir()) == []
