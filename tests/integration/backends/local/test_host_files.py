"""Which folders of the host may be shown: an installation of a tool, and nothing else of the user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.backends.local.host_tools import (
    find_host_tools,
    is_open_to_us,
    is_system_path,
)
from cooperbench.errors import UserError
from tests.support.requirements import require_root
from tests.support.sandbox.programs import check_programs


def install(prefix: Path, tool: str, marker: str) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / marker).mkdir(parents=True)
    (prefix / "bin" / tool).write_text("#!/bin/sh\n")
    (prefix / "bin" / tool).chmod(0o755)
    return prefix


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home" / "user"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("RUSTUP_HOME", raising=False)
    return home


def use(monkeypatch: pytest.MonkeyPatch, *prefixes: Path) -> None:
    monkeypatch.setenv(
        "PATH", os.pathsep.join([*(str(prefix / "bin") for prefix in prefixes), "/usr/bin"])
    )


def test_the_python_that_runs_us_is_found() -> None:
    tools = find_host_tools(())
    executable = tools.python
    assert executable is not None
    assert executable.exists()
    assert is_system_path(executable.resolve()) or any(
        executable.is_relative_to(prefix) for prefix in tools.prefixes
    )
    assert Path(sys.prefix) not in tools.prefixes or sys.prefix == sys.base_prefix


def test_a_node_in_the_home_is_shown_without_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = install(home / ".nvm" / "versions" / "node" / "v20", "node", "lib/node_modules")
    use(monkeypatch, node)
    tools = find_host_tools(())
    assert node in tools.prefixes
    assert str(node / "bin") in tools.path


@pytest.mark.parametrize("place", [".", ".local", ".cargo"])
def test_a_prefix_that_holds_other_things_is_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    node = install(home / place, "node", "lib/node_modules")
    use(monkeypatch, node)
    assert node.resolve() not in find_host_tools(()).prefixes


def test_a_shim_is_not_taken_for_an_installation(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims = install(home / ".asdf" / "shims", "node", "lib")
    use(monkeypatch, shims)
    assert shims not in find_host_tools(()).prefixes


def test_rustup_shows_the_toolchain_and_not_the_credentials(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cargo = install(home / ".cargo", "cargo", "registry")
    toolchain = install(home / ".rustup" / "toolchains" / "stable-x", "cargo", "lib/rustlib")
    (home / ".rustup" / "settings.toml").write_text('default_toolchain = "stable-x"\n')
    use(monkeypatch, cargo)
    prefixes = find_host_tools(()).prefixes
    assert toolchain in prefixes
    assert cargo not in prefixes


def test_nothing_that_contains_our_own_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = install(home / "tools" / "node", "node", "lib/node_modules")
    use(monkeypatch, node)
    assert node in find_host_tools(()).prefixes
    assert node not in find_host_tools((node / "cache",)).prefixes
    (node / "project").mkdir()
    monkeypatch.chdir(node / "project")
    assert node not in find_host_tools(()).prefixes


def test_a_cache_in_another_users_closed_folder_says_what_to_do(tmp_path: Path) -> None:
    require_root()  # only root meets folders that are closed to it in a user namespace
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.chown(closed, 65534, 65534)
    assert not is_open_to_us(closed / ".." / "closed")
    with pytest.raises(UserError, match="Set COOPERBENCH_CACHE_DIR") as failure:
        LocalBackend(cache_dir=closed / "cache").create_sandbox("host")
    assert "\n" not in str(failure.value)


def test_a_cache_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        UserError, match=r"cannot write to the cache folder .*COOPERBENCH_CACHE_DIR"
    ):
        LocalBackend(cache_dir=tmp_path / "file").create_sandbox("host")


def test_programs_are_shown_read_only(local: LocalBackend, tmp_path: Path) -> None:
    check_programs(local, "host", tmp_path / "programs")
