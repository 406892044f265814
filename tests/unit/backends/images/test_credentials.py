"""Passwords for registries, where `docker login` and `podman login` keep them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.images.credentials import Credentials, find_credentials
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = "registry.example:5000"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Docker's configuration, on the PATH too."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def write(folder: Path, content: object, name: str = "config.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def add_helper(folder: Path, script: str) -> None:
    helper = folder / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)


def test_no_file() -> None:
    assert find_credentials(REGISTRY) is None


@pytest.mark.parametrize(
    ("registry", "key"),
    [
        (REGISTRY, REGISTRY),
        (REGISTRY, f"https://{REGISTRY}"),
        ("docker.io", "https://index.docker.io/v1/"),
        ("docker.io", "docker.io"),
    ],
)
def test_a_password_in_the_file(registry: str, key: str, folder: Path) -> None:
    write(folder, {"auths": {"other.example": {}, key: {"auth": encoded("me", "a:b")}}})
    assert find_credentials(registry) == Credentials("me", "a:b")


def test_an_identity_token(folder: Path) -> None:
    entry = {"auth": encoded("me", ""), "identitytoken": "token"}
    write(folder, {"auths": {REGISTRY: entry}})
    assert find_credentials(REGISTRY) == Credentials("me", "", "token")


def test_files_in_order(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path_factory.mktemp("runtime")
    auth = {"auths": {REGISTRY: {"auth": encoded("podman", "1")}}}
    write(runtime, auth, "containers/auth.json")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert find_credentials(REGISTRY) == Credentials("podman", "1")
    write(folder, {"auths": {REGISTRY: {"auth": encoded("docker", "2")}}})
    assert find_credentials(REGISTRY) == Credentials("docker", "2")
    own = write(runtime, {"auths": {REGISTRY: {"auth": encoded("own", "3")}}}, "own.json")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(own))
    assert find_credentials(REGISTRY) == Credentials("own", "3")


@pytest.mark.parametrize("setting", [{"credHelpers": {REGISTRY: "test"}}, {"credsStore": "test"}])
def test_a_credential_helper(setting: object, folder: Path) -> None:
    write(folder, setting)
    add_helper(folder, f"[ $1 = get ] && grep -qx {REGISTRY} && echo '{json.dumps(ANSWER)}'")
    assert find_credentials(REGISTRY) == Credentials("me", "secret")


ANSWER = {"Username": "me", "Secret": "secret"}


@pytest.mark.parametrize(
    ("script", "credentials"),
    [
        ("echo 'credentials not found'; exit 1", None),
        ("echo junk", None),
        ("echo '[]'", None),
        (
            """echo '{"Username": "<token>", "Secret": "abc"}'""",
            Credentials("<token>", "", "abc"),
        ),
    ],
)
def test_answers_of_a_helper(script: str, credentials: Credentials | None, folder: Path) -> None:
    write(folder, {"credsStore": "test"})
    add_helper(folder, script)
    assert find_credentials(REGISTRY) == credentials


def test_a_helper_that_is_not_installed(folder: Path) -> None:
    write(folder, {"credsStore": "missing"})
    with pytest.raises(UserError, match=r"docker-credential-missing for .* does not work"):
        find_credentials(REGISTRY)


@pytest.mark.parametrize("entry", [{}, None, {"auth": None}, {"auth": "not Base64"}])
def test_an_entry_without_a_password(entry: object, folder: Path) -> None:
    write(folder, {"auths": {REGISTRY: entry}, "credHelpers": None, "credsStore": None})
    assert find_credentials(REGISTRY) is None


def test_a_link_to_the_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = {"auths": {REGISTRY: {"auth": encoded("me", "secret")}}}
    target = write(tmp_path_factory.mktemp("dotfiles"), content)
    (folder / "config.json").symlink_to(target)
    assert find_credentials(REGISTRY) == Credentials("me", "secret")


@pytest.mark.parametrize("content", ['{"auths": []}', '{"auths": {"a": 1}}', "{", "[]"])
def test_a_file_that_is_damaged(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json cannot be read") as caught:
        find_credentials(REGISTRY)
    assert "\n" not in str(caught.value)
