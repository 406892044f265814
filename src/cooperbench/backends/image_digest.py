"""The current digest of an image name in a container registry, requested without credentials.

Clouds keep what they once pulled by a name. The digest shows whether there is a newer image under
the same name.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple

from cooperbench.errors import InfraError

_TIMEOUT_SECONDS = 20.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE_FIELD = re.compile(r'(realm|service|scope)="([^"]*)"')
_MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
_HTTP_UNAUTHORIZED = 401


class ImageName(NamedTuple):
    """The parts of an image name."""

    server: str
    repository: str
    tag: str


def has_registry(name: str) -> bool:
    """Return whether an image name begins with a server."""
    server, slash, _ = name.partition("/")
    if not slash:
        return False
    return "." in server or ":" in server or server == "localhost"


def parse_image_name(name: str) -> ImageName:
    """Split an image name; `python:3.11` means library/python at Docker Hub."""
    if not has_registry(name):
        name = f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
    server, _, path = name.partition("/")
    if server == "docker.io":
        server = "registry-1.docker.io"
    repository, _, tag = path.partition(":")
    return ImageName(server, repository, tag or "latest")


def resolve_digest(name: str) -> str:
    """Return the digest of the image that a name stands for now.

    Raises:
        InfraError: The registry cannot be reached, wants credentials or does not know the name.
    """
    server, repository, tag = parse_image_name(name)
    scheme = "http" if _THIS_MACHINE.fullmatch(server) else "https"
    url = f"{scheme}://{server}/v2/{repository}/manifests/{urllib.parse.quote(tag)}"
    try:
        digest = _request_with_anonymous_token(url)
    except (OSError, ValueError) as error:
        raise InfraError(f"cannot get the digest of {name} from {server}: {error}") from error
    if not _DIGEST.fullmatch(digest):
        raise InfraError(f"cannot get the digest of {name} from {server}: there is none")
    return digest


def _request_with_anonymous_token(url: str) -> str:
    """Request a digest; if the registry wants a token that everybody can get, get it first."""
    try:
        return _request_digest(url)
    except urllib.error.HTTPError as error:
        token = ""
        with error:
            if error.code == _HTTP_UNAUTHORIZED:
                token = _request_token(error.headers.get("WWW-Authenticate", ""))
        if not token:
            raise
    return _request_digest(url, token)


def _request_digest(url: str, token: str = "") -> str:
    headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # The caller has made the URL, so its scheme is http or https.
    request = urllib.request.Request(url, headers=headers, method="HEAD")  # noqa: S310  # http(s)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:  # noqa: S310  # same
        return str(reply.headers.get("Docker-Content-Digest", ""))


def _request_token(challenge: str) -> str:
    """Return the token that a registry gives to everybody; empty if there is none."""
    fields = dict(_CHALLENGE_FIELD.findall(challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith("https://"):
        return ""
    url = f"{realm}?{urllib.parse.urlencode(fields)}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310  # https
        content = json.load(response)
    return str(content.get("token") or content.get("access_token") or "")
