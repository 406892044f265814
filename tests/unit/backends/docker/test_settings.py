"""Settings by keyword, variable and config file, and what is said about wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.backends.docker.settings import Mount, read_mount, read_settings
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("CPUS", "MEMORY", "PIDS_LIMIT", "MOUNTS", "PULL"):
        monkeypatch.delenv(f"COOPERBENCH_DOCKER_{name}", raising=False)
    monkeypatch.delenv("COOPERBENCH_BUILD_ARGS", raising=False)
    monkeypatch.delenv("MSWEA_DOCKER_EXECUTABLE", raising=False)


def test_a_keyword_comes_before_a_variable_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cooperbench").mkdir()
    (tmp_path / "cooperbench/config.json").write_text(
        '{"docker": {"cpus": 1, "memory": "1g", "pids_limit": 100}}'
    )
    monkeypatch.setenv("COOPERBENCH_DOCKER_MEMORY", "2g")
    monkeypatch.setenv("COOPERBENCH_DOCKER_PIDS_LIMIT", "200")
    settings = read_settings(pids_limit=300)
    assert (settings.cpus, settings.memory, settings.pids_limit) == (1.0, 2 * 1024**3, 300)


def test_zero_is_no_limit() -> None:
    settings = read_settings(cpus=0, memory="0", pids_limit=0)
    assert (settings.cpus, settings.memory, settings.pids_limit) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("1.5 GiB", 3 << 29), ("64000000", 64_000_000)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_settings(memory=text).memory == size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "lots"}, "memory: 'lots' is not a limit"),
        ({"memory": "1m"}, "too little"),
        ({"cpus": "-1"}, "cpus: '-1'"),
        ({"cpus": "nan"}, "cpus: 'nan'"),
        ({"pids_limit": "1.5"}, "pids_limit: '1.5'"),
        ({"pull": "sometimes"}, "valid values: missing, always, never"),
        ({"build_args": "BASE"}, "not NAME=VALUE"),
        ({"build_args": "'"}, "build_args: No closing quotation"),
        ({"colour": "red"}, "no setting 'colour'"),
        ({"mounts": ["/a"]}, "SOURCE:TARGET"),
        ({"mounts": ["/a:b"]}, "not an absolute path"),
        ({"mounts": ["/a:/x:rx"]}, "SOURCE:TARGET:rw"),
        ({"mounts": ["/a:/workspace/repo"]}, "belongs to the task"),
        ({"mounts": ["/a:/mnt/../patches"]}, "belongs to the task"),
        ({"mounts": ["/a:/"]}, "below /"),
    ],
)
def test_wrong_settings_get_one_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_settings(**given)
    assert "\n" not in str(caught.value)


def test_a_wrong_config_file(tmp_path: Path) -> None:
    (tmp_path / "cooperbench").mkdir()
    (tmp_path / "cooperbench/config.json").write_text('{"docker": {"color": 1}}')
    with pytest.raises(UserError, match=r"config\.json: `docker` has no setting 'color'"):
        read_settings()


def test_build_arguments_and_mounts_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_BUILD_ARGS", "BASE_IMAGE=a:b 'WITH=a space'")
    monkeypatch.setenv("COOPERBENCH_DOCKER_MOUNTS", "/one:/mnt/one /two:/mnt/two:rw")
    settings = read_settings()
    assert settings.build_args == {"BASE_IMAGE": "a:b", "WITH": "a space"}
    assert settings.mounts == (Mount("/one", "/mnt/one"), Mount("/two", "/mnt/two", writable=True))


@given(st.text(max_size=30))
def test_any_mount_is_read_or_refused(text: str) -> None:
    try:
        mount = read_mount(text)
    except UserError:
        return
    assert mount.target.startswith("/")
    assert not mount.target.startswith(("/workspace/", "/patches/", "/cooperbench/"))
