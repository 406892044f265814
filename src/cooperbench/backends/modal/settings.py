"""What can be set about sandboxes at Modal: by keyword, by environment variable, or in the user's config file.

A keyword comes first, then the variable (COOPERBENCH_MODAL_ and the name), then the key of the same name in the object
`modal` of config.json. The token and the environment are read by Modal's client: MODAL_TOKEN_ID, MODAL_TOKEN_SECRET,
MODAL_ENVIRONMENT, ~/.modal.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from cooperbench.settings import (
    matching,
    name_value_pairs,
    one_of,
    parsers_of,
    read_section,
    setting,
    word_list,
)


@dataclass(frozen=True)
class Share:
    """What a sandbox is guaranteed and at least billed for, and what it may use at most."""

    reserved: float
    most: float


def _share(
    parse_amount: Callable[[str], float], default_most: float, example: str
) -> Callable[[object], Share]:
    def parse(value: object) -> Share:
        first, _, second = str(value).partition(":")
        with suppress(ValueError):
            reserved = parse_amount(first)
            most = parse_amount(second) if second else max(reserved, default_most)
            if 0 < reserved <= most:
                return Share(reserved, most)
        raise ValueError(f"{str(value)!r} is not valid; it is e.g. {example}, reserved and most")

    return parse


def _mebibytes(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([mgt])(?:i?b)?", text.strip().lower())
    if not match:
        raise ValueError(text)
    return round(float(match[1]) * {"m": 1, "g": 1024, "t": 1024**2}[match[2]])


def _domains(value: Any) -> tuple[str, ...]:
    parse = matching(r"\*|(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", "e.g. pypi.org or *.debian.org")
    return tuple(parse(word) for word in word_list(value))


@dataclass(frozen=True)
class ModalSettings:
    app: str = setting(
        "cooperbench", matching(r"[A-Za-z0-9._-]{1,64}", "letters, digits, ._- and at most 64")
    )
    """Under which sandboxes are shown in Modal's dashboard."""
    cpu: Share = setting(Share(1.0, 4.0), _share(float, 4.0, "1 or 1:4"))
    """Physical cores: `1`, or reserved and most as `1:4`."""
    memory: Share = setting(Share(2048, 8192), _share(_mebibytes, 8192, "2g or 2g:8g"))
    """MiB; set as `2g`, or reserved and most as `2g:8g`."""
    gpu: str = setting("", matching(r"[A-Za-z0-9-]+!?(:[1-8])?", "e.g. T4 or A100-80GB:2"))
    """Modal then uses its older kind of sandbox."""
    region: tuple[str, ...] = setting((), word_list)
    images: Literal["auto", "registry", "build"] = setting("auto", one_of("auto", "registry", "build"))
    """`registry`: only pulled; `build`: only built from Dockerfiles; `auto`: pulled, else built."""
    allow_domains: tuple[str, ...] = setting((), _domains)
    """With the network policy `public`: all that sandboxes reach; empty: everything."""
    registry_secret: str = setting("", str)
    """Name of a Modal secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for private images."""
    build_args: Mapping[str, str] = setting({}, name_value_pairs)
    image_template: str | None = setting(None, str)


_VARIABLES = {"build_args": "COOPERBENCH_BUILD_ARGS", "image_template": ""}
"""Those that are shared with other backends; the template's is read where images are named."""


def read_settings(**given: object) -> ModalSettings:
    """The settings in force; UserError for one that is unknown or has no valid value."""
    return ModalSettings(**read_section("modal", parsers_of(ModalSettings), given, _VARIABLES))
