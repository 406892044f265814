"""A client of container registries: the part of the OCI distribution protocol that reads images.

Plain HTTP from the standard library. Proxies are those of the environment (`https_proxy`).
"""

from __future__ import annotations

import email.utils
import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from cooperbench.backends.images.credentials import Credentials, find_credentials
from cooperbench.backends.images.model import (
    DOCKER_HUB,
    MANIFEST_TYPES,
    DamagedImage,
    Descriptor,
    NoSuchImage,
    digest_of,
    is_digest,
)
from cooperbench.backends.images.settings import ImageSettings
from cooperbench.errors import InfraError
from cooperbench.retry import backoff_seconds
from cooperbench.text import duration_text, printable, shorten

T = TypeVar("T")
NETWORK_ERRORS = (OSError, http.client.HTTPException)
"""Errors of a connection that may work the next time; urllib's own are OSErrors."""
MAX_ATTEMPTS = 4
MAX_MANIFEST_BYTES = 4 * 1024**2
_DOCKER_HUB_SERVER = "registry-1.docker.io"
_THIS_MACHINE = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?")
_CHALLENGE_FIELD = re.compile(r'(\w+)="([^"]*)"')
_MAX_WAIT_SECONDS = 20.0
"""Seconds up to which it is worth waiting for a registry that refuses requests for now."""
_FIRST_EPOCH_SECOND = 1_000_000_000
"""Numbers above this in a header are points in time, not durations."""
_CLIENT = "cooperbench"


class RegistryUnavailable(InfraError):
    """A registry cannot be reached, hangs, or fails."""


class RateLimited(RegistryUnavailable):
    """A registry refuses more requests for now."""


class _Unauthorized(Exception):
    """A registry wants a token, or refuses the one that it got."""

    def __init__(self, challenge: str) -> None:
        super().__init__(challenge)
        self.challenge = challenge


class ManifestReply(NamedTuple):
    """A manifest as a registry sent it, checked against its digest."""

    data: bytes
    digest: str
    media_type: str


class BlobReply(NamedTuple):
    """An open response with the content of a blob."""

    response: http.client.HTTPResponse
    offset: int
    """Position at which the content starts: 0 if the registry cannot continue a download."""


class RegistryClient:
    """One server with images. Its methods may be called from several threads.

    Errors: NoSuchImage, RateLimited, RegistryUnavailable, DamagedImage; UserError for a credential
    helper that does not work.
    """

    def __init__(self, registry: str, url: str, timeout_seconds: float) -> None:
        """Keep the settings.

        Args:
            registry: Name of the registry, for messages and credentials.
            url: URL of the server, without a path for a registry itself.
            timeout_seconds: Seconds without a byte after which the server counts as hanging.
        """
        self.registry = registry
        self.url = url
        self._timeout_seconds = timeout_seconds
        self._authorizations: dict[str, str] = {}
        """Authorization headers by repository."""
        self._lock = threading.Lock()

    def get_manifest(self, repository: str, reference: str) -> ManifestReply:
        """Return a manifest or an index by its tag or digest."""
        path = f"{repository}/manifests/{urllib.parse.quote(reference, safe=':')}"
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}

        def read(response: http.client.HTTPResponse) -> ManifestReply:
            data = response.read(MAX_MANIFEST_BYTES + 1)
            digest = digest_of(data)
            header = response.headers.get("Docker-Content-Digest") or digest
            expected = reference if is_digest(reference) else header
            if len(data) > MAX_MANIFEST_BYTES or (is_digest(expected) and digest != expected):
                raise DamagedImage(
                    f"{self.registry} sent a manifest of {repository} that does not match its"
                    f" digest {printable(expected)[:80]}"
                )
            media_type = response.headers.get("Content-Type", "").partition(";")[0]
            return ManifestReply(data, digest, media_type)

        return self._get(repository, path, headers, read)

    def get_blob(self, repository: str, blob: Descriptor) -> bytes:
        """Return a small blob: the configuration of an image."""
        if blob.size > MAX_MANIFEST_BYTES:
            raise DamagedImage(
                f"{self.registry}/{repository} has a configuration of {blob.size:,} bytes"
            )

        def read(response: http.client.HTTPResponse) -> bytes:
            return response.read(MAX_MANIFEST_BYTES + 1)

        data = self._get(repository, f"{repository}/blobs/{blob.digest}", {}, read)
        if digest_of(data) != blob.digest:
            raise DamagedImage(
                f"{self.registry} sent a configuration that does not match its digest {blob.digest}"
            )
        return data

    def open_blob(self, repository: str, digest: str, offset: int = 0) -> BlobReply:
        """Open a blob for reading from a position, or from its start if that is not possible."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        response = self._get(
            repository, f"{repository}/blobs/{digest}", headers, lambda reply: reply, keep_open=True
        )
        continues = response.status == HTTPStatus.PARTIAL_CONTENT
        return BlobReply(response, offset if continues else 0)

    # Requests.

    def _get(
        self,
        repository: str,
        path: str,
        headers: Mapping[str, str],
        read: Callable[[http.client.HTTPResponse], T],
        *,
        keep_open: bool = False,
    ) -> T:
        """Send a request, with a token if the registry wants one; try again after an outage."""
        url = f"{self.url}/v2/{path}"
        request_headers = dict(headers)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                response = self._open_authorized(url, repository, request_headers)
                if keep_open:
                    return read(response)
                with response:
                    return read(response)
            except urllib.error.HTTPError as error:
                with error:
                    wait_seconds = self._wait_or_raise(error, path, attempt)
            except NETWORK_ERRORS as error:
                if attempt == MAX_ATTEMPTS:
                    raise self._unavailable(error) from None
                wait_seconds = backoff_seconds(attempt)
            time.sleep(wait_seconds)
        raise AssertionError("the last attempt raises")

    def _open_authorized(
        self, url: str, repository: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        try:
            return self._open(url, headers, self._authorizations.get(repository, ""))
        except _Unauthorized as refused:
            # Other threads wait here for the token that the first one gets.
            with self._lock:
                authorization = self._authorize(refused.challenge, repository)
                self._authorizations[repository] = authorization
        try:
            return self._open(url, headers, authorization)
        except _Unauthorized:
            raise self._denied(repository) from None

    def _open(
        self, url: str, headers: Mapping[str, str], authorization: str
    ) -> http.client.HTTPResponse:
        # The URL comes from settings or from parts that were checked: its scheme is http or https.
        all_headers = {"User-Agent": _CLIENT, **headers}
        request = urllib.request.Request(url, headers=all_headers)  # noqa: S310
        if authorization:
            # Not for the storage server that a registry redirects to.
            request.add_unredirected_header("Authorization", authorization)
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(  # noqa: S310  # see above
                request, timeout=self._timeout_seconds
            )
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED:
                raise
            with error:
                raise _Unauthorized(error.headers.get("WWW-Authenticate", "")) from None
        return response

    # Tokens.

    def _authorize(self, challenge: str, repository: str) -> str:
        """Return the Authorization header that a registry asks for."""
        credentials = find_credentials(self.registry)
        kind, _, parameters = challenge.partition(" ")
        if kind.lower() == "basic":
            if credentials is None:
                raise self._denied(repository)
            return credentials.basic
        fields = dict(_CHALLENGE_FIELD.findall(parameters))
        realm = fields.get("realm", "")
        is_safe = realm.startswith("https://") or (
            realm.startswith("http://") and self.url.startswith("http://")
        )
        if kind.lower() != "bearer" or not is_safe:
            raise RegistryUnavailable(
                f"{self.registry} requires an unknown kind of authentication: "
                f"{shorten(printable(challenge), 200)}"
            )
        query = {
            "service": fields.get("service", ""),
            "scope": fields.get("scope") or f"repository:{repository}:pull",
        }
        return f"Bearer {self._get_token(realm, query, credentials, repository)}"

    def _get_token(
        self,
        realm: str,
        query: dict[str, str],
        credentials: Credentials | None,
        repository: str,
    ) -> str:
        data = None
        headers = {"User-Agent": _CLIENT}
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        if credentials is not None and credentials.identity_token:
            form = {
                **query,
                "grant_type": "refresh_token",
                "refresh_token": credentials.identity_token,
                "client_id": _CLIENT,
            }
            data = urllib.parse.urlencode(form).encode()
            url = realm
        elif credentials is not None:
            headers["Authorization"] = credentials.basic
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  # checked
        timeout = self._timeout_seconds
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:  # noqa: S310
                content = json.loads(reply.read(MAX_MANIFEST_BYTES))
            return str(content.get("token") or content["access_token"])
        except urllib.error.HTTPError as error:
            if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise self._denied(repository) from None
            raise
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise RegistryUnavailable(f"{self.registry} gave no token for {repository}") from None

    # Errors.

    def _wait_or_raise(self, error: urllib.error.HTTPError, path: str, attempt: int) -> float:
        """Return the seconds after which a request is worth another try, or raise its error."""
        repository, _, reference = path.rsplit("/", 2)
        if error.code == HTTPStatus.NOT_FOUND:
            separator = "@" if is_digest(reference) else ":"
            raise NoSuchImage(f"{self.registry} does not have {repository}{separator}{reference}")
        if error.code == HTTPStatus.FORBIDDEN:
            raise self._denied(repository)
        if error.code == HTTPStatus.TOO_MANY_REQUESTS:
            seconds = seconds_until_reset(error.headers, time.time())
            if attempt == MAX_ATTEMPTS or seconds is None or seconds > _MAX_WAIT_SECONDS:
                raise self._rate_limited(seconds)
            return seconds
        is_outage = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
        if attempt == MAX_ATTEMPTS or not is_outage:
            reason = f"it answered {error.code} {printable(str(error.reason))[:100]}"
            raise RegistryUnavailable(f"{self.registry} cannot be used: {reason}")
        return backoff_seconds(attempt)

    def _rate_limited(self, seconds: float | None) -> RateLimited:
        until = ""
        if seconds is not None:
            clock = time.strftime("%H:%M", time.localtime(time.time() + seconds))
            until = f" until {clock}, in {duration_text(seconds)}"
        return RateLimited(
            f"{self.registry} refuses more downloads for now{until} (429). Sign in for a higher"
            f" limit (docker login {self.registry}), wait, or set COOPERBENCH_IMAGES_MIRRORS"
        )

    def _denied(self, repository: str) -> NoSuchImage:
        return NoSuchImage(
            f"{self.registry} does not have {repository}, or you may not read it"
            f" (docker login {self.registry})"
        )

    def _unavailable(self, error: BaseException) -> RegistryUnavailable:
        reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            reason = f"it did not answer within {self._timeout_seconds:g} s"
        return RegistryUnavailable(
            f"{self.registry} cannot be reached at {self.url}: {printable(str(reason))[:200]}"
        )


def seconds_until_reset(headers: Message, now: float) -> float | None:
    """Return the seconds until a registry accepts requests again, from the headers of a 429."""
    for name in ("Retry-After", "X-RateLimit-Reset", "RateLimit-Reset"):
        value = headers.get(name)
        if not value:
            continue
        if value.strip().isdecimal():
            number = float(value)
            return max(0.0, number - now if number > _FIRST_EPOCH_SECOND else number)
        date = email.utils.parsedate_tz(value)
        if date is not None:
            return max(0.0, email.utils.mktime_tz(date) - now)
    return None


def clients_for(registry: str, settings: ImageSettings) -> list[RegistryClient]:
    """Return the servers that may have a registry's images, in the order to ask them."""
    clients = []
    if mirror := settings.mirrors.get(registry):
        name = urllib.parse.urlsplit(mirror).netloc
        clients.append(RegistryClient(name, mirror, settings.timeout))
    server = _DOCKER_HUB_SERVER if registry == DOCKER_HUB else registry
    is_plain = registry in settings.plain_http or _THIS_MACHINE.fullmatch(registry)
    scheme = "http" if is_plain else "https"
    clients.append(RegistryClient(registry, f"{scheme}://{server}", settings.timeout))
    return clients
