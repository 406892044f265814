"""Who contributed what, from patches alone; with pushes it is tested in tests/runner/test_git.py."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any

from cooperbench.team.contribution import contributions
from cooperbench.team.ledger import FileThere, Push
from tests.tiny import text_patch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox
    from cooperbench.team.ledger import Place
    from cooperbench.team.sandbox_rpc import Response

OLD = ["a\n", "b\n"]


def patch(path: str, *added: str) -> bytes:
    text = text_patch(path, OLD, [*OLD, *(f"{line}\n" for line in added)])
    return f"diff --git a/{path} b/{path}\nindex {'1' * 40}..{sha1(repr(added).encode()).hexdigest()} 100644\n{text}".encode()


class Pushed:
    """A remote of another kind: one that knows what was pushed, and nothing else."""

    base_commit = "base"

    def __init__(self, *pushes: tuple[str, bytes]) -> None:
        self._pushes = [Push(agent_id, f"c{number}") for number, (agent_id, _) in enumerate(pushes)]
        self._contents = {"base": "".join(OLD).encode()} | {
            f"c{number}": text for number, (_, text) in enumerate(pushes)
        }

    def pushes(self) -> list[Push]:
        return self._pushes

    def open(self, run_name: str = "") -> tuple[str, ...]:
        return ()

    def files_at(self, places: Sequence[Place]) -> Mapping[Place, FileThere]:
        return {place: FileThere(f"blob of {place[0]}", self._contents[place[0]]) for place in places}

    def attach(
        self, agent_id: str, sandbox: RichSandbox, *, repo_dir: str, base_commit: str, base_git_dir: str
    ) -> None:
        raise NotImplementedError

    def push(self, agent_id: str, commit: str) -> Response:
        raise NotImplementedError

    def detach(self, agent_id: str) -> None: ...

    def record(self) -> dict[str, Any]:
        return {}

    def write_bundle(self, path: Path) -> bool:
        return False

    def close(self) -> None: ...


def test_lines_in_common_are_counted_per_file_and_without_empty_ones() -> None:
    one = patch("x", "same", "same", "", "mine") + patch("y", "same")
    two = patch("x", "same", "", "theirs") + patch("z", "mine")
    record = contributions({"agent1": one, "agent2": two})
    assert record["agent1"] == {
        "added_lines": 5, "shared_lines": {"x": 1}, "taken_over_lines": 0, "taken_over_files": [],
    }  # fmt: skip
    assert record["agent2"]["shared_lines"] == {"x": 1}
    assert record["agent2"]["added_lines"] == 4


def test_who_pushed_a_line_first_did_not_take_it_over() -> None:
    patches = {"agent1": patch("x", "idea"), "agent2": patch("x", "idea")}
    for first, second in (("agent1", "agent2"), ("agent2", "agent1")):
        record = contributions(patches, Pushed((first, b"a\nb\nidea\n"), (second, b"a\nb\nidea\n")))
        assert (record[first]["taken_over_lines"], record[second]["taken_over_lines"]) == (0, 1)


def test_lines_of_the_base_belong_to_nobody() -> None:
    record = contributions({"agent1": patch("x", "a"), "agent2": b""}, Pushed(("agent2", b"a\nb\nc\n")))
    assert record["agent1"]["taken_over_lines"] == 0


def test_what_is_no_patch_counts_nothing() -> None:
    record = contributions({"agent1": b"not a diff", "agent2": b""})
    assert record["agent1"] == record["agent2"]
    assert record["agent1"]["added_lines"] == 0


def test_lines_that_look_like_headers_are_lines() -> None:
    record = contributions(
        {"agent1": patch("x", "++ b/y", "@@ -1 +1 @@", "diff --git a/x b/x"), "agent2": b""}
    )
    assert record["agent1"]["added_lines"] == 3
