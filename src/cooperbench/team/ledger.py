"""What was pushed in a pair, as the harness has it: commits in a hub on the host, their order, and who pushed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.team.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Place = tuple[str, str]
"""A commit and a path."""


@dataclass(frozen=True)
class Push:
    """One that was taken."""

    agent_id: str
    commit: str


@dataclass(frozen=True)
class FileThere:
    """A file in a commit."""

    blob: str
    """Its id; empty where there is none."""
    content: bytes = b""
    """Empty also where it is too large to look into."""


@dataclass
class Account:
    """Of one agent."""

    pushes: int = 0
    refused: int = 0
    commits: int = 0
    bytes: int = 0


class Ledger:
    """Of one pair; `folder` is there from the first push until `remove`."""

    def __init__(self, folder: Path, agent_ids: Sequence[str]) -> None:
        self._folder = folder
        self.accounts = {agent_id: Account() for agent_id in agent_ids}
        self.base_commit = ""
        self.pushes: list[Push] = []
        self.hub: Hub | None = None

    def start(self, base_pack: bytes) -> Hub:
        """Make the hub. Ids tell whether what a sandbox gave is the base commit."""
        hub = Hub(self._folder, self.base_commit, list(self.accounts))
        try:
            hub.add_base(base_pack)
        except BaseException:
            hub.remove()
            raise
        self.hub = hub
        return hub

    def add(self, agent_id: str, commit: str, pack: bytes) -> None:
        """A push that is taken, with what the hub does not have yet; GitError where something is wrong with it."""
        assert self.hub is not None
        account = self.accounts[agent_id]
        account.commits += self.hub.add(agent_id, commit, pack)
        account.pushes += 1
        self.pushes.append(Push(agent_id, commit))

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]:
        if self.hub is None:
            return {}
        blobs = self.hub.blobs_at(places)
        contents = self.hub.contents_of(blobs.values())
        return {place: FileThere(blob, contents.get(blob, b"")) for place, blob in blobs.items()}

    def record(self) -> dict[str, Any]:
        """For result.json."""
        return {
            name: {agent_id: getattr(account, name) for agent_id, account in self.accounts.items()}
            for name in ("pushes", "refused", "commits", "bytes")
        }

    def write_bundle(self, path: Path) -> bool:
        return self.hub is not None and self.hub.write_bundle(path)

    def remove(self) -> None:
        if self.hub is not None:
            self.hub.remove()
