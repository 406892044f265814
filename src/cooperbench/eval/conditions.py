"""Conditions under which tests run: the network, and whether the image has a dependency layer."""

from __future__ import annotations

import re
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

LAYER_FORMAT = 4
"""Increased when dependency layers are made differently: those of other formats are not used."""
WHEELS_DIR = "/cooperbench/wheels"
"""Folder of a dependency layer with the packages that pip downloaded."""
PIP_LOG = "/cooperbench/pip.log"
BUILD_PACKAGES = "/cooperbench/build-packages"
"""File of a dependency layer in which the packages with which pip builds are installed, too.

By default pip installs them anew for each build, which takes longer than most tests.
"""
_BUILD_FILE = re.compile(
    rb"^diff --git [^\n]*[/\"](?:pyproject\.toml|setup\.cfg|setup\.py)\b", re.MULTILINE
)
_LAYER_ENV = {"npm_config_store_dir": "/cooperbench/pnpm-store"}
"""Environment of every command in an image with a dependency layer.

By default pnpm keeps its store on the file system of the repository, which is not in the layer.
"""
_QUIET_ENV = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "YARN_ENABLE_TELEMETRY": "0",
}
"""Environment in which package managers send no requests that no install needs."""
_OFFLINE_ENV = {
    **_QUIET_ENV,
    # Not PIP_NO_INDEX: an image may have an index in a folder.
    "PIP_RETRIES": "0",
    "UV_OFFLINE": "1",
    "UV_HTTP_RETRIES": "0",
    "npm_config_offline": "true",
    "npm_config_fetch_retries": "0",
    "pnpm_config_offline": "true",
    "pnpm_config_fetch_retries": "0",
    "YARN_ENABLE_NETWORK": "false",
    "YARN_HTTP_RETRY": "0",
    "CARGO_NET_OFFLINE": "true",
    "CARGO_NET_RETRY": "0",
    "GOPROXY": "off",
    "BUNDLE_PREFER_LOCAL": "true",
    "BUNDLE_RETRY": "0",
    "POETRY_REQUESTS_MAX_RETRIES": "0",
    "CONDA_OFFLINE": "true",
    "CONDA_REMOTE_MAX_RETRIES": "0",
    "COMPOSER_DISABLE_NETWORK": "1",
}
"""Environment without a network: package managers take what the image has, or fail at once.

By default they wait and try again, npm for more than a minute per request.
"""
_ONLINE_ENV = {
    **_QUIET_ENV,
    # With 0 retries pip does not print why it cannot reach an index.
    "PIP_RETRIES": "2",
    "PIP_DEFAULT_TIMEOUT": "20",
    "UV_HTTP_RETRIES": "2",
    "npm_config_fetch_retries": "2",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "5000",
    "npm_config_fetch_timeout": "60000",
    "YARN_HTTP_RETRY": "2",
    "CARGO_NET_RETRY": "2",
    "BUNDLE_RETRY": "2",
}
"""Environment with a network: an outage ends a run within a minute or two."""
_INSTALLED_ENV = {
    **_LAYER_ENV,
    **_OFFLINE_ENV,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS_DIR,
}
"""Environment without a network in an image with a dependency layer."""
_PREBUILT_ENV = {**_INSTALLED_ENV, "COOPERBENCH_USE_BUILD_PACKAGES": "1"}
"""Environment in which `RUNNER_WRAPPER` lets pip build with installed packages."""
INSTALL_ENV = {
    **_LAYER_ENV,
    **_ONLINE_ENV,
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
        if self.network == "none":
            return _INSTALLED_ENV if self.installed else _OFFLINE_ENV
        if self.network == "public":
            return {**_LAYER_ENV, **_ONLINE_ENV} if self.installed else _ONLINE_ENV
        return {}

    def env_for(self, patch: bytes) -> Mapping[str, str]:
        """Return the environment for a patch: one that changes how it is built is built afresh."""
        may_use_build_packages = self.network == "none" and self.installed
        if may_use_build_packages and not _BUILD_FILE.search(patch):
            return _PREBUILT_ENV
        return self.env

    @property
    def label(self) -> str:
        """Name of the conditions in the cache of references.

        With a network the runner installs what it needs, so a dependency layer makes no difference.
        """
        if self.network == "none" and self.installed:
            return f"none, dependency layer {LAYER_FORMAT}"
        return str(self.network)


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
