"""User names and passwords for registries, from where `docker login` and `podman login` keep them.

The files are $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json (else ~/.docker/config.json) and
$XDG_RUNTIME_DIR/containers/auth.json. A password may be in the file itself, or in a credential
helper, a program that Docker calls `docker-credential-NAME`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec

from cooperbench.backends.images.model import DOCKER_HUB
from cooperbench.errors import UserError
from cooperbench.storage import read_bytes
from cooperbench.text import printable

_HELPER_SECONDS = 30
_TOKEN_USER = "<token>"  # noqa: S105  # what helpers say instead of a user name
_DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")


class Credentials(NamedTuple):
    """User name and password for a registry."""

    user: str
    password: str = ""
    identity_token: str = ""
    """A long-lived token that the registry exchanges for others, instead of a password."""

    @property
    def basic(self) -> str:
        """The value of an Authorization header with user name and password."""
        pair = f"{self.user}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


class _Entry(msgspec.Struct, frozen=True):
    """The credentials of one registry in a file."""

    auth: str | None = None
    """User name and password, joined by a colon and encoded with Base64."""
    identity_token: str | None = msgspec.field(name="identitytoken", default=None)


class _ConfigFile(msgspec.Struct, frozen=True):
    """The parts of config.json and auth.json that are about credentials."""

    entries: dict[str, _Entry | None] | None = msgspec.field(name="auths", default=None)
    helpers: dict[str, str] | None = msgspec.field(name="credHelpers", default=None)
    default_helper: str | None = msgspec.field(name="credsStore", default=None)


def find_credentials(registry: str) -> Credentials | None:
    """Return this user's credentials for a registry; None if there are none.

    Raises:
        UserError: A credential helper is missing or fails, or a file is damaged.
    """
    for path in _files():
        credentials = _from_file(path, registry)
        if credentials is not None:
            return credentials
    return None


def _files() -> list[Path]:
    files = []
    if own := os.environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(own))
    docker = os.environ.get("DOCKER_CONFIG")
    files.append((Path(docker) if docker else Path.home() / ".docker") / "config.json")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime) / "containers/auth.json")
    return files


def _from_file(path: Path, registry: str) -> Credentials | None:
    keys = _DOCKER_HUB_KEYS if registry == DOCKER_HUB else (registry, f"https://{registry}")
    data = read_bytes(path, follow_link=True)
    if data is None:
        return None
    try:
        content = msgspec.json.decode(data, type=_ConfigFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read, which may have the password for {registry}: {error}"
        ) from None
    for key in keys:
        helper = (content.helpers or {}).get(key)
        entry = (content.entries or {}).get(key)
        if helper:
            return _ask_helper(helper, key)
        if entry and (entry.auth or entry.identity_token):
            return _from_entry(entry)
    if content.default_helper:
        return _ask_helper(content.default_helper, keys[0])
    return None


def _from_entry(entry: _Entry) -> Credentials | None:
    try:
        decoded = base64.b64decode(entry.auth or "").decode()
    except ValueError:
        return None
    user, _, password = decoded.partition(":")
    return Credentials(user, password.rstrip("\0"), entry.identity_token or "")


def _ask_helper(helper: str, key: str) -> Credentials | None:
    """Return what a credential helper has for a registry; None if it has nothing."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=key.encode(),
            capture_output=True,
            check=False,
            timeout=_HELPER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"the credential helper {printable(program)} for {key} does not work: {error}."
            " Install it, or remove it from your Docker configuration"
        ) from None
    if done.returncode:
        # Helpers report a registry that they do not know as an error on stdout.
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        return None
    if user == _TOKEN_USER:
        return Credentials(user, identity_token=secret)
    return Credentials(user, secret)
