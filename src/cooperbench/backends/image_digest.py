"""The current digest of an image name in a container registry, asked for without credentials.

Clouds keep what they once pulled by a name: with the digest a newer image under the old name is noticed.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request

from cooperbench.errors import InfraError

_ASK_SECONDS = 20.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')
_ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")


def has_registry(name: str) -> bool:
    """Does the name of an image begin with a server?"""
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def parse_image_name(name: str) -> tuple[str, str, str]:
    """Server, repository and tag: `python:3.11` is library/python at Docker Hub, as everywhere."""
    if not has_registry(name):
        name = f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
    server, _, path = name.partition("/")
    repository, _, tag = path.partition(":")
    return "registry-1.docker.io" if server == "docker.io" else server, repository, tag or "latest"


def resolve_digest(name: str) -> str:
    """InfraError where the registry cannot be reached, wants credentials, or does not know the name."""
    server, repository, tag = parse_image_name(name)
    scheme = "http" if _LOCAL.fullmatch(server) else "https"
    url = f"{scheme}://{server}/v2/{repository}/manifests/{urllib.parse.quote(tag)}"
    try:
        try:
            digest = _ask(url)
        except urllib.error.HTTPError as error:
            with error:
                token = (
                    _token(error.headers.get("WWW-Authenticate", "")) if error.code == 401 else ""
                )
            if not token:
                raise
            digest = _ask(url, token)
    except (OSError, ValueError) as error:
        raise InfraError(f"{server} does not tell what {name} is: {error}") from error
    if not _DIGEST.fullmatch(digest):
        raise InfraError(f"{server} does not tell what {name} is")
    return digest


def _ask(url: str, token: str = "") -> str:
    headers = {"Accept": _ACCEPT, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, headers=headers, method="HEAD")  # noqa: S310
    with urllib.request.urlopen(request, timeout=_ASK_SECONDS) as answer:  # noqa: S310
        return str(answer.headers.get("Docker-Content-Digest", ""))


def _token(challenge: str) -> str:
    """What a registry gives to everybody who asks where it says; empty where it gives nothing."""
    asked = dict(_CHALLENGE.findall(challenge))
    realm = asked.pop("realm", "")
    if not realm.startswith("https://"):
        return ""
    url = f"{realm}?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(url, timeout=_ASK_SECONDS) as answer:  # noqa: S310  # https only
        content = json.load(answer)
    return str(content.get("token") or content.get("access_token") or "")
