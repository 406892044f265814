"""Documents of the OCI image format that are read: manifests, indexes, configurations.

Docker's own formats have the same fields. Fields that nothing here uses are left out.
"""

from __future__ import annotations

import hashlib
import platform
import re
from typing import NamedTuple, TypeVar

import msgspec

from cooperbench.backends.image_digest import has_registry
from cooperbench.errors import InfraError, UserError
from cooperbench.text import names_for_error, printable

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
OCI_MANIFEST = MANIFEST_TYPES[1]
DOCKER_HUB = "docker.io"
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
}
"""Names of architectures in images, by the kernel's names, where they differ."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9._-]+(/[a-z0-9._-]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)


class NoSuchImage(UserError):
    """A registry or an archive does not have an image, or not for this machine."""


class DamagedImage(InfraError):
    """The received data is not the requested image, or not an image at all."""


class ImageReference(NamedTuple):
    """The parts of an image name."""

    registry: str
    repository: str
    reference: str
    """A tag, or a digest."""

    def __str__(self) -> str:
        separator = "@" if is_digest(self.reference) else ":"
        return f"{self.registry}/{self.repository}{separator}{self.reference}"


def parse_reference(name: str) -> ImageReference:
    """Split an image name as Docker does: `python:3.11` is docker.io/library/python:3.11."""
    full_name = name
    if not has_registry(name):
        full_name = f"{DOCKER_HUB}/{name}" if "/" in name else f"{DOCKER_HUB}/library/{name}"
    registry, _, path = full_name.partition("/")
    path, _, digest = path.partition("@")
    repository, _, tag = path.partition(":")
    is_valid = _REPOSITORY.fullmatch(repository) and _TAG.fullmatch(tag or "latest")
    if not is_valid or (digest and not is_digest(digest)):
        raise UserError(
            f"{printable(name)!r} is not an image name, e.g. python:3.11 or"
            " registry.example/team/image:tag"
        )
    return ImageReference(registry, repository, digest or tag or "latest")


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 digest as images use them."""
    return bool(_DIGEST.fullmatch(text))


def digest_of(data: bytes) -> str:
    """Return the digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that an image is for."""

    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a blob or a manifest by its digest."""

    digest: str
    size: int
    media_type: str = msgspec.field(name="mediaType", default="")
    platform: Platform | None = None
    annotations: dict[str, str] = {}


class ManifestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest (with `config` and `layers`) or an index (with `manifests`)."""

    schema_version: int = msgspec.field(name="schemaVersion", default=2)
    media_type: str = msgspec.field(name="mediaType", default="")
    config: Descriptor | None = None
    layers: list[Descriptor] = []
    manifests: list[Descriptor] = []


class ContainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How containers of an image are run."""

    env: list[str] | None = msgspec.field(name="Env", default=None)
    working_dir: str | None = msgspec.field(name="WorkingDir", default=None)
    user: str | None = msgspec.field(name="User", default=None)


class RootFs(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the uncompressed layers, the lowest first."""

    diff_ids: list[str] = []


class ConfigDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an image."""

    architecture: str = ""
    os: str = ""
    variant: str = ""
    config: ContainerConfig | None = None
    rootfs: RootFs = RootFs()


class SavedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in manifest.json, which `docker save` writes."""

    config: str = msgspec.field(name="Config")
    """The name of a file, as those of `layers`."""
    layers: list[str] = msgspec.field(name="Layers")
    names: list[str] | None = msgspec.field(name="RepoTags", default=None)


def parse_saved_images(data: bytes, source: str) -> list[SavedImage]:
    """Return the images that manifest.json names."""
    return _decode(data, list[SavedImage], f"manifest.json of {source}")


def parse_manifest(data: bytes, name: str) -> ManifestDocument:
    """Return the manifest or index of an image."""
    manifest = _decode(data, ManifestDocument, f"the manifest of {name}")
    if manifest.schema_version != 2:
        raise DamagedImage(f"{name} has a manifest of schema version 1, which is not supported")
    for descriptor in [*manifest.layers, *manifest.manifests]:
        _check_descriptor(descriptor, name)
    if manifest.config is not None:
        _check_descriptor(manifest.config, name)
    return manifest


def parse_config(data: bytes, name: str) -> ConfigDocument:
    """Return the configuration of an image; NoSuchImage if it is for other machines."""
    config = _decode(data, ConfigDocument, f"the configuration of {name}")
    if config.architecture and config.architecture != this_architecture():
        own = Platform(architecture=config.architecture, os=config.os)
        raise NoSuchImage(f"{name} is for {own}, and this machine is linux/{this_architecture()}")
    for diff_id in config.rootfs.diff_ids:
        if not is_digest(diff_id):
            raise DamagedImage(f"{name} names a layer {printable(diff_id)[:80]!r}, not a SHA-256")
    return config


def choose_manifest(index: ManifestDocument, name: str) -> Descriptor:
    """Return the manifest of an index for this machine; NoSuchImage if there is none."""
    for descriptor in index.manifests:
        machine = descriptor.platform
        if machine is None or (machine.os or "linux") != "linux":
            continue
        if machine.architecture == this_architecture():
            return descriptor
    platforms = {str(item.platform) for item in index.manifests if item.platform is not None}
    available = names_for_error(sorted(platforms - {"unknown/unknown"})) or "none"
    raise NoSuchImage(
        f"{name} has no manifest for linux/{this_architecture()}; it has: {printable(available)}"
    )


def this_architecture() -> str:
    """Return the name that images use for the architecture of this machine."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _check_descriptor(descriptor: Descriptor, name: str) -> None:
    if not is_digest(descriptor.digest) or descriptor.size < 0:
        raise DamagedImage(
            f"{name} refers to {printable(descriptor.digest)[:80]!r}, which is not a SHA-256 digest"
        )


DocumentT = TypeVar("DocumentT", ManifestDocument, ConfigDocument, list[SavedImage])


def _decode(data: bytes, kind: type[DocumentT], description: str) -> DocumentT:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedImage(f"{description} cannot be read: {printable(str(error))[:200]}") from None
