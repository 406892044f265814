"""What can be set about sandboxes at Modal: by keyword, by variable, or in the object `modal` of config.json.

The token and the environment are read by Modal's client: MODAL_TOKEN_ID, MODAL_TOKEN_SECRET, MODAL_ENVIRONMENT,
~/.modal.toml.
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
    """What a sandbox is guaranteed and at least billed for, and what it may use at most."""

    reserved: float
    most: float


def _share(parse_amount: Callable[[str], float], default: Share, example: str) -> Any:
    """A setting `RESERVED:MOST`; without the second it is the default, or as much as is reserved."""

    def parse(value: object) -> Share:
        first, _, second = str(value).partition(":")
        with suppress(ValueError):
            reserved = parse_amount(first)
            most = parse_amount(second) if second else max(reserved, default.most)
            if 0 < reserved <= most:
                return Share(reserved, most)
        raise ValueError(f"{str(value)!r} is not valid; it is e.g. {example}, reserved and most")

    return setting(default, parse)


_domain = matching(r"\*|(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", "e.g. pypi.org or *.debian.org")


@dataclass(frozen=True)
class ModalSettings:
    app: str = setting(
        "cooperbench", matching(r"[A-Za-z0-9._-]{1,64}", "letters, digits, ._-, at most 64")
    )
    """Under which sandboxes are shown in Modal's dashboard."""
    cpu: Share = _share(float, Share(1.0, 4.0), "1 or 1:4")
    """Physical cores."""
    memory: Share = _share(
        lambda text: byte_size(text) // 1024**2, Share(2048, 8192), "2g or 2g:8g"
    )
    """MiB."""
    gpu: str = setting("", matching(r"[A-Za-z0-9-]+!?(:[1-8])?", "e.g. T4 or A100-80GB:2"))
    """Modal then uses its older kind of sandbox."""
    region: tuple[str, ...] = setting((), word_list)
    images: Literal["auto", "registry", "build"] = setting(
        "auto", one_of("auto", "registry", "build")
    )
    """`registry`: only pulled; `build`: only built from Dockerfiles; `auto`: pulled, else built."""
    allow_domains: tuple[str, ...] = setting(
        (), lambda value: tuple(map(_domain, word_list(value)))
    )
    """With the network policy `public`: all that sandboxes reach; empty: everything."""
    registry_secret: str = setting("", str)
    """Name of a Modal secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for private images."""
    build_args: Mapping[str, str] = setting({}, name_value_pairs)
    """Of Dockerfiles."""
    image_template: str = setting(PUBLISHED_TEMPLATE, image_template)


_VARIABLES = {"build_args": "COOPERBENCH_BUILD_ARGS", "image_template": ENVIRONMENT_VARIABLE}
"""Those that are shared with other backends. The others are called COOPERBENCH_MODAL_ and their name."""


def read_settings(**given: object) -> ModalSettings:
    """The settings in force; UserError for one that is unknown or has no valid value."""
    return ModalSettings(**read_section("modal", parsers_of(ModalSettings), given, _VARIABLES))
