"""Settings of image downloads: environment variables, else `images` in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cooperbench.backends.setting_fields import (
    name_value_pairs,
    parsers_of,
    read_section,
    setting,
    whole_number,
    word_list,
)
from cooperbench.errors import UserError


def _mirrors(value: object) -> dict[str, str]:
    mirrors = name_value_pairs(value)
    for registry, url in mirrors.items():
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"{registry}={url} is not REGISTRY=URL with https:// or http://")
    return {registry: url.rstrip("/") for registry, url in mirrors.items()}


@dataclass(frozen=True)
class ImageSettings:
    """Settings of image downloads, e.g. COOPERBENCH_IMAGES_MIRRORS for `mirrors`."""

    mirrors: Mapping[str, str] = setting({}, _mirrors)
    """Servers to ask first: REGISTRY=URL, e.g. `docker.io=https://mirror.example`; separated by
    spaces."""
    plain_http: tuple[str, ...] = setting((), word_list)
    """Registries without TLS, as HOST or HOST:PORT, separated by commas; those on localhost need no
    entry."""
    jobs: int = setting(3, whole_number)
    """Layers of an image that are downloaded and unpacked at the same time."""
    timeout: int = setting(30, whole_number)
    """Seconds without a byte after which a registry counts as unresponsive."""
    max_layer_gb: int = setting(50, whole_number)
    """Maximum size of an unpacked layer in GB."""


def read_settings(**keywords: object) -> ImageSettings:
    """Return the settings in force; UserError if one is unknown or invalid."""
    values = read_section("images", parsers_of(ImageSettings), keywords, {})
    settings = ImageSettings(**values)
    for registry in settings.mirrors:
        if "/" in registry:
            raise UserError(
                f"images setting mirrors: {registry!r} is not a registry, e.g. docker.io"
            )
    return settings
