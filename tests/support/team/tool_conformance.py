"""What a team's tools do in the sandboxes of a backend, whatever backend that is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from cooperbench.team.mailbox import Mailbox
from cooperbench.team.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.sandbox.contract import Sandbox

AGENTS = ("agent1", "agent2", "agent3")
PARTS = dict.fromkeys(("task_list", "scratchpad", "protocol", "auto_refresh"), True)
RACE = "for n in 1 2 3 4; do coop-task-claim $n >/dev/null 2>&1; echo $?; done"


class ToolConformance:
    @pytest.mark.parametrize("streams", [True, False], ids=["streams", "polled"])
    def test_the_tools_of_a_team(
        self, make_sandbox: Callable[[], Sandbox], *, streams: bool
    ) -> None:
        with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
            team = stack.enter_context(
                closing(Team(AGENTS, Mailbox(AGENTS), None, lambda _: None, PARTS))
            )
            sandboxes = {agent_id: make_sandbox() for agent_id in AGENTS}
            for agent_id, sandbox in sandboxes.items():
                stack.callback(sandbox.terminate)
                team.join(
                    agent_id, sandbox, streams=streams, repo_dir="", base_commit="", base_git_dir=""
                )

            def run(agent_id: str, command: str) -> str:
                done = sandboxes[agent_id].run(
                    ["bash", "-c", f"{{ {command}\n}} 2>&1"], timeout_seconds=120
                )
                return done.stdout_read()

            for number in range(1, 5):
                assert "[open] nobody: it's 'quoted'" in run(
                    "agent1", f"coop-task-create \"it's 'quoted' {number}\""
                )
            codes = [output.split() for output in pool.map(run, AGENTS, [RACE] * 3)]
            assert [sorted(at) for at in zip(*codes, strict=True)] == [["0", "2", "2"]] * 4

            asked = pool.submit(
                run, "agent1", "echo plan >/workspace/shared/plan; coop-request agent2 review plan?"
            )
            wait = (
                "until coop-pending | grep -q 'Request 1 from agent1 (review)'; do sleep 0.1; done"
            )
            answer = "cat /workspace/shared/plan; coop-respond 1 fine"
            assert run("agent2", f"{wait}; {answer}") == "plan\nagent1 has your answer.\n"
            assert asked.result() == "agent2 answered your request 1 (review):\nfine\n"
            assert run(
                "agent1", "coop-request --wait 0.5 agent2 question nobody; echo $?"
            ).endswith("3\n")
            # A name in the sandbox is worth nothing: the sender is whose sandbox it is.
            run("agent3", "echo agent1 >/cooperbench/team/agent; coop-task-create forged")
            assert team.tasks is not None
            assert team.tasks.tasks()[-1].created_by == "agent3"
