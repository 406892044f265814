"""Conditions under which tests run: the network, and whether the image has a dependency layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cooperbench.errors import UserError
from cooperbench.models import EvalNetwork
from cooperbench.sandbox.contract import (
    Capabilities,
    NetworkPolicy,
    SandboxOptions,
    check_network,
)

WHEELS_DIR = "/cooperbench/wheels"
"""Folder of a dependency layer with the packages that pip downloaded."""
PIP_LOG = "/cooperbench/pip.log"
_LAYER_ENV = {"npm_config_store_dir": "/cooperbench/pnpm-store"}
"""Environment of every command in an image with a dependency layer.

By default pnpm keeps its store on the file system of the repository, which is not in the layer.
"""
OFFLINE_ENV = {
    **_LAYER_ENV,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS_DIR,
    "UV_OFFLINE": "1",
    "npm_config_offline": "true",
    "GOPROXY": "off",
    "CARGO_NET_OFFLINE": "true",
}
"""Environment that makes package managers use the dependency layer, since there is no network."""
INSTALL_ENV = {
    **_LAYER_ENV,
    "PIP_LOG": PIP_LOG,
    # Empty means not set: an image that disables the cache would download everything twice.
    "PIP_NO_CACHE_DIR": "",
}
"""Environment of the run that installs the dependencies."""


class Conditions(NamedTuple):
    """Conditions of a test run. It is compared only with a reference under the same conditions."""

    network: NetworkPolicy | None
    """None if the backend takes no options; its author decides about the network then."""
    installed: bool = False
    """Whether the image has a dependency layer."""

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables of the test run."""
        if not self.installed:
            return {}
        if self.network == "none":
            return OFFLINE_ENV
        return _LAYER_ENV


def conditions_to_try(capabilities: Capabilities, policy: EvalNetwork) -> tuple[Conditions, ...]:
    """Return the conditions that a network policy allows, from the strictest to the most open.

    Raises:
        UserError: The backend cannot provide any of them.
    """
    if not capabilities.networks:
        if policy != "auto":
            raise UserError(
                f"this backend does not support --eval-network {policy}: it takes no options."
                " Use --eval-network auto."
            )
        return (Conditions(None),)
    allowed = []
    if policy in ("auto", "none"):
        allowed.append(Conditions("none"))
    if policy == "auto" and capabilities.snapshots:
        allowed.append(Conditions("none", installed=True))
    if policy in ("auto", "public"):
        allowed.append(Conditions("public", installed=capabilities.snapshots))
    possible = [step for step in allowed if step.network in capabilities.networks]
    if not possible:
        check_network(capabilities, SandboxOptions(network=allowed[0].network or "none"))
    return tuple(possible)
