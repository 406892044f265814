"""The frameworks that have an environment of their own, with the versions that were tried."""

from __future__ import annotations

from dataclasses import dataclass

from cooperbench.errors import UserError

LITELLM = "litellm>=1.75.5,!=1.82.7,!=1.82.8,!=1.106.*"
"""1.106 fails on every call with tools unless `mcp` is installed."""


@dataclass(frozen=True)
class Framework:
    """One framework, as `cooperbench agents` installs it."""

    name: str
    distribution: str
    """Whose version is shown."""
    oldest_python: tuple[int, int]
    newest_python: tuple[int, int]
    requirements: tuple[str, ...]
    needs_source: bool = False
    """It has no release that can be installed: the user says where its source is."""
    source_folders: tuple[str, ...] = ()
    """What must be in the source besides the package, since no installation brings it."""

    @property
    def pythons(self) -> str:
        oldest, newest = (".".join(map(str, version)) for version in (self.oldest_python, self.newest_python))
        return f"{oldest} to {newest}"

    @property
    def install_command(self) -> str:
        return f"cooperbench agents install {self.name}" + (
            " --from PATH_OR_GIT_URL" if self.needs_source else ""
        )


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            name="openhands",
            distribution="openhands-sdk",
            oldest_python=(3, 12),
            newest_python=(3, 13),
            requirements=("openhands-sdk>=1.58,<1.59", "openhands-tools>=1.58,<1.59", LITELLM),
        ),
        Framework(
            name="swe_agent",
            distribution="sweagent",
            oldest_python=(3, 11),
            newest_python=(3, 13),
            requirements=(LITELLM,),
            needs_source=True,
            source_folders=("config", "tools"),
        ),
    )
}


def get_framework(name: str) -> Framework:
    try:
        return FRAMEWORKS[name]
    except KeyError:
        raise UserError(f"no framework {name!r}; there are: {', '.join(FRAMEWORKS)}") from None
