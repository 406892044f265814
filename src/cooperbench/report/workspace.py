"""Contributions of each agent to a shared workspace, and whose work was overwritten by others.

The evidence is workspace.json. A change counts as an agent's own if no command of another agent ran
at the same time; docs/coordination.md defines every number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cooperbench.records.workspace import FileChange, WorkspaceChange, WorkspaceRecord
from cooperbench.report.pairs import PairData
from cooperbench.text import printable


@dataclass(frozen=True)
class Contribution:
    """The changes by the commands of one agent."""

    agent_id: str
    own_changes: int
    """Number of changes while only commands of this agent ran; a change is one file once."""
    joint_changes: int
    """Number of changes while commands of others ran too, so that it may have been theirs."""
    files: tuple[str, ...]
    """The files of its own changes."""
    added: int
    """Lines that its own changes added; so is the next field."""
    removed: int
    final_files: tuple[str, ...]
    """Files of the patch whose last change is its own."""


@dataclass(frozen=True)
class Overwrite:
    """A change of a file that another agent had changed before."""

    path: str
    status: str
    """`M` modified or `D` deleted, as git has it."""
    agents: tuple[str, ...]
    """Agents whose commands ran. They do not include any of the next."""
    previous_agents: tuple[str, ...]
    """Agents whose commands ran when the file was changed before."""
    steps: dict[str, int]
    """The steps of `agents`."""
    time: str

    @property
    def text(self) -> str:
        """One line for people."""
        verb = "deleted" if self.status == "D" else "changed"
        previous = _names(self.previous_agents)
        return f"{_names(self.agents)} {verb} {printable(self.path)} after {previous}"


@dataclass(frozen=True)
class WorkspaceUse:
    """How the agents of one pair used a shared workspace."""

    contributions: tuple[Contribution, ...]
    overwrites: tuple[Overwrite, ...]
    changes: int
    """Number of all changes."""
    joint_changes: int
    """Number of changes while commands of several agents ran."""
    unattributed: int
    """Number of changes while no command ran: by processes in the background."""
    problems: tuple[str, ...]
    """Why something may be missing."""


def _names(agent_ids: Sequence[str]) -> str:
    """Return the agents of a change, of which one has made it."""
    return " or ".join(agent_ids)


def measure_workspace(pair: PairData) -> WorkspaceUse | None:
    """Return how a shared workspace was used; None if each agent had its own.

    Without a readable workspace.json nothing is known, which is one of the problems.
    """
    if not pair.shares_workspace or pair.result is None or pair.result.shared is None:
        return None
    record = pair.workspace()
    if record is None:
        return WorkspaceUse((), (), 0, 0, 0, ("there is no usable workspace.json",))
    changes = list(_file_changes(record))
    final_files = pair.result.shared.files_changed
    return WorkspaceUse(
        contributions=tuple(
            _contribution(agent_id, changes, final_files) for agent_id in pair.agent_ids
        ),
        overwrites=tuple(find_overwrites(record)),
        changes=len(changes),
        joint_changes=sum(len(change.agents) > 1 for change, _ in changes),
        unattributed=sum(not change.agents for change, _ in changes),
        problems=tuple(_problems(record)),
    )


def _file_changes(record: WorkspaceRecord) -> Iterator[tuple[WorkspaceChange, FileChange]]:
    for change in record.changes:
        for file in change.files:
            yield change, file


def _contribution(
    agent_id: str,
    changes: Sequence[tuple[WorkspaceChange, FileChange]],
    final_files: Sequence[str],
) -> Contribution:
    own = [file for change, file in changes if change.agents == [agent_id]]
    joint = [change for change, _ in changes if _is_joint(change, agent_id)]
    return Contribution(
        agent_id=agent_id,
        own_changes=len(own),
        joint_changes=len(joint),
        files=tuple(dict.fromkeys(file.path for file in own)),
        added=sum(file.added or 0 for file in own),
        removed=sum(file.removed or 0 for file in own),
        final_files=tuple(_files_left_by(agent_id, changes, final_files)),
    )


def _is_joint(change: WorkspaceChange, agent_id: str) -> bool:
    """Whether an agent may have made a change, but another one too."""
    return agent_id in change.agents and len(change.agents) > 1


def _files_left_by(
    agent_id: str,
    changes: Sequence[tuple[WorkspaceChange, FileChange]],
    final_files: Sequence[str],
) -> Iterator[str]:
    """Yield the files of the patch whose last change is an agent's own."""
    last_agents = {file.path: change.agents for change, file in changes}
    for path in final_files:
        if last_agents.get(path) == [agent_id]:
            yield path


def find_overwrites(record: WorkspaceRecord) -> Iterator[Overwrite]:
    """Yield each change of a file that certainly other agents had changed before, in order."""
    last_agents: dict[str, tuple[str, ...]] = {}
    for change, file in _file_changes(record):
        agents = tuple(change.agents)
        before = last_agents.get(file.path, ())
        if agents and before and not set(agents) & set(before):
            yield Overwrite(
                path=file.path,
                status=file.status,
                agents=agents,
                previous_agents=before,
                steps=dict(change.steps),
                time=change.time,
            )
        if agents:
            last_agents[file.path] = agents


def _problems(record: WorkspaceRecord) -> Iterator[str]:
    if record.failed_snapshots:
        yield (
            f"{record.failed_snapshots} of {record.failed_snapshots + record.snapshots} snapshots "
            f"of the workspace failed: {record.problem}"
        )
    if not all(change.is_complete for change in record.changes):
        yield "a change of the workspace has more files than are listed"
