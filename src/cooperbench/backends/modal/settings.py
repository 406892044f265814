"""Settings of sandboxes at Modal: keywords, environment variables, or `modal` in config.json.

Modal's client reads the token and the environment itself, from MODAL_TOKEN_ID, MODAL_TOKEN_SECRET,
MODAL_ENVIRONMENT and ~/.modal.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cooperbench.backends.setting_fields import (
    byte_size,
    matching,
    name_value_pairs,
    one_of,
    parsers_of,
    read_section,
    setting,
    word_list,
)
from cooperbench.dataset.image_names import ENVIRONMENT_VARIABLE, PUBLISHED_TEMPLATE, image_template


class Share(NamedTuple):
    """The amount of a resource that is reserved (and billed), and the limit for its use."""

    reserved: float
    limit: float


def _share(parse_amount: Callable[[str], float], default: Share, example: str) -> Any:
    """Declare a setting `RESERVED[:LIMIT]`; the limit defaults to the larger of both defaults."""

    def _parse(value: object) -> Share:
        first, _, second = str(value).partition(":")
        with suppress(ValueError):
            reserved = parse_amount(first)
            limit = parse_amount(second) if second else max(reserved, default.limit)
            if 0 < reserved <= limit:
                return Share(reserved, limit)
        raise ValueError(f"{str(value)!r} is not valid; an example is {example} (reserved:limit)")

    return setting(default, _parse)


_domain = matching(r"\*|(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", "e.g. pypi.org or *.debian.org")


@dataclass(frozen=True)
class ModalSettings:
    """All settings of the `modal` backend."""

    app: str = setting(
        "cooperbench", matching(r"[A-Za-z0-9._-]{1,64}", "letters, digits, ._-, at most 64")
    )
    """The app that sandboxes belong to in Modal's dashboard."""
    cpu: Share = _share(float, Share(1.0, 4.0), "1 or 1:4")
    """Physical cores, reserved:limit. Modal bills what is reserved."""
    memory: Share = _share(
        lambda text: byte_size(text) // 1024**2, Share(2048, 8192), "2g or 2g:8g"
    )
    """Memory, reserved:limit."""
    gpu: str = setting("", matching(r"[A-Za-z0-9-]+!?(:[1-8])?", "e.g. T4 or A100-80GB:2"))
    """Type of GPU, e.g. `T4` or `A100-80GB:2`; Modal then uses its older kind of sandbox. Also
    `--gpu`."""
    region: tuple[str, ...] = setting((), word_list)
    """One or more regions, separated by commas; Modal charges for the choice."""
    images: Literal["auto", "registry", "build"] = setting(
        "auto", one_of("auto", "registry", "build")
    )
    """`registry`: only pulled; `build`: only built from Dockerfiles; `auto`: pulled, else built."""
    allow_domains: tuple[str, ...] = setting(
        (), lambda value: tuple(map(_domain, word_list(value)))
    )
    """The only domains that sandboxes with `--network public` can reach, e.g.
    `pypi.org,*.debian.org`; empty for all."""
    registry_secret: str = setting("", str)
    """Name of a Modal secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for private images."""
    build_args: Mapping[str, str] = setting({}, name_value_pairs)
    """Build arguments of Dockerfiles: NAME=VALUE, separated by spaces."""
    image_template: str = setting(PUBLISHED_TEMPLATE, image_template)
    """Names of task images: a text with {repo}, {short} and {task_id}. Also `--image-template`."""


VARIABLES = {"build_args": "COOPERBENCH_BUILD_ARGS", "image_template": ENVIRONMENT_VARIABLE}
"""Variables shared with other backends. The others are named COOPERBENCH_MODAL_<SETTING>."""


def read_settings(**keywords: object) -> ModalSettings:
    """Return the settings in force; UserError if one is unknown or invalid."""
    return ModalSettings(**read_section("modal", parsers_of(ModalSettings), keywords, VARIABLES))
