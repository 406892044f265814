"""The git remote `team` that the agents of a pair share: what the rest of CooperBench knows of it.

Two ways: the harness carries commits between the sandboxes (`carriedremote`), which works on any backend and without a
network; or a git server next to the sandboxes serves them (`servedremote`), on backends that have a place for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cooperbench.team.carriedremote import CarriedRemote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.ledger import FileThere, Place, Push
    from cooperbench.team.sandbox_rpc import Response


class GitRemote(Protocol):
    """Of one pair. Asked from the threads of several agents."""

    def open(self, run_name: str = "") -> tuple[str, ...]:
        """Make it ready, before there are sandboxes; what those have to reach, as `host:port`.

        `run_name`: for people who look at what is running.
        """
        ...

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        """Give the repository in a sandbox the remote `team`."""
        ...

    def push(self, agent_id: str, commit: str) -> Response:
        """An agent's branch is to move: carry it to its colleagues, or say why not."""
        ...

    def detach(self, agent_id: str) -> None:
        """An agent is done: its sandbox will be gone, its branch stays."""
        ...

    @property
    def base_commit(self) -> str:
        """Where everybody started from."""
        ...

    def pushes(self) -> list[Push]:
        """Those that were taken, in order."""
        ...

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]: ...

    def record(self) -> dict[str, Any]:
        """For result.json: what each agent has pushed."""
        ...

    def write_bundle(self, path: Path) -> bool:
        """The final branches as a file that can be cloned; False where nobody has pushed."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SharingBackend(Protocol):
    """A backend with a way of its own to share, such as a git server next to its sandboxes, if it has this method."""

    def make_git_remote(self, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
        """For one pair; `folder` on the host is the remote's to make, to use and to remove."""
        ...


def make_remote(backend: object, folder: Path, agent_ids: Sequence[str]) -> GitRemote:
    """The backend's own, else the one that works everywhere."""
    if isinstance(backend, SharingBackend):
        return backend.make_git_remote(folder, agent_ids)
    return CarriedRemote(folder, agent_ids)
