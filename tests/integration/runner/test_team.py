"""Setting team: the real tools in real sandboxes, what is judged, and what is on record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.runner.options import TEAM_PARTS
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import PLACES, write_script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.agents.session import AgentSession

TASK_COMMANDS = ("coop-task-create", "coop-task-claim", "coop-task-update", "coop-task-list")
REQUEST_COMMANDS = ("coop-request", "coop-respond", "coop-pending")


def work(tmp_path: Path, *agents: Sequence[str | dict[str, Any]], **options: Any) -> Left:
    """Agents that run these commands, one step each."""
    chapters = {
        number: [{"run": step} if isinstance(step, str) else step for step in steps]
        for number, steps in enumerate(agents, 1)
    }
    script = write_script(tmp_path / "script.yaml", chapters)
    features = tuple(range(1, len(agents) + 1))
    settings: dict[str, Any] = {"setting": "team", "auto_eval": False} | options
    return run_tiny(tmp_path, "scripted", features, agent_config=str(script), **settings)


def updates(left: Left, agent_id: str) -> str:
    """What the team's tools have told an agent between its steps."""
    steps = left.trajectory(agent_id)["steps"]
    return "\n".join(
        step["args"]["content"] for step in steps if step["args"].get("kind") == "team"
    )


def until(text: str, seconds: int = 60) -> dict[str, Any]:
    return {"wait": {"for": text, "seconds": seconds}}


def feature(number: int) -> str:
    return f"sed -i '{PLACES[number] + 1}a feature {number}' app.txt"


def test_tasks_are_shared_claimed_once_and_on_record(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        [
            "coop-task-create --assign agent2 change app.txt",
            "coop-task-create 'for anybody'; coop-task-claim 2",
            until("updated #1"),
            "coop-task-list",
        ],
        [
            until("claimed #2"),
            "coop-task-claim 2; echo code $?",
            "coop-task-claim 1 && coop-task-update 1 done -n 'in app.txt'",
            "coop-task-claim 9; echo code $?",
            "coop-task-update 1 finished; echo code $?",
        ],
    )
    lead, member = left.observations("agent1"), left.observations("agent2")
    assert lead[0] == "#1 [open] agent2: change app.txt\n"
    assert (
        lead[2]
        == "#2 [in_progress] agent1: for anybody\n#1 [done] agent2: change app.txt — in app.txt\n"
    )
    assert "task 2 belongs to agent1" in member[0]
    assert "code 2" in member[0]
    assert "there is no task 9" in member[2]
    assert "choose from" in member[3]
    assert "agent2 claimed #1" not in updates(left, "agent2")
    assert "agent1 created #1 [open] agent2: change app.txt" in updates(left, "agent2")
    tasks = left.json("tasks.json")["tasks"]
    assert [(task["id"], task["owner"], task["state"], task["note"]) for task in tasks] == [
        (1, "agent2", "done", "in app.txt"), (2, "agent1", "in_progress", "")
    ]  # fmt: skip
    changes = left.json("task_log.json")["changes"]
    assert [(one["agent"], one["change"], one["task"]) for one in changes] == [
        ("agent1", "create", 1), ("agent1", "create", 2), ("agent1", "claim", 2), ("agent2", "claim_lost", 2),
        ("agent2", "claim", 1), ("agent2", "update", 1),
    ]  # fmt: skip
    assert [one["step"] for one in changes] == [1, 2, 2, 1, 2, 2]
    metrics = left.result["metrics"]
    assert metrics["time_to_first_claim_seconds"] > 0
    assert (metrics["tasks_total"], metrics["tasks_done"], metrics["unowned_at_end"]) == (2, 1, 0)
    assert (metrics["claims_lost"], metrics["claims_per_agent"]) == (1, {"agent1": 1, "agent2": 1})
    assert metrics["updates_per_agent"] == {"agent1": 0, "agent2": 1}
    assert left.result["team_features"] == dict.fromkeys(TEAM_PARTS, True)


def test_of_all_who_race_for_a_task_one_wins(tmp_path: Path) -> None:
    race = 'for n in 1 2 3 4 5; do until coop-task-list | grep -q "#$n "; do :; done; coop-task-claim $n; done'
    # Nobody ends before all have tried: what is left unfinished by who ends may be claimed.
    first = f"for n in 1 2 3 4 5; do coop-task-create $n; done; {race}"
    agents: list[list[dict[str, Any]]] = [[{"run": first}], [{"run": race}], [{"run": race}]]
    for number, steps in enumerate(agents, 1):
        steps.append({"run": f"send_message --all over{number}"})
        steps += [until(f"over{other}") for other in (1, 2, 3) if other != number]
    left = work(tmp_path, *agents)
    changes = left.json("task_log.json")["changes"]
    assert sorted(one["task"] for one in changes if one["change"] == "claim") == [1, 2, 3, 4, 5]
    assert left.result["metrics"]["claims_lost"] == 10


def test_a_member_that_dies_leaves_its_task_to_others(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        [
            "coop-task-create one",
            until("agent2 has ended with unfinished tasks, which others can claim now: #1"),
            "coop-task-claim 1",
        ],
        [until("#1"), "coop-task-claim 1", {"give_up": "no idea"}],
    )
    assert left.observations("agent1")[1] == "#1 [in_progress] agent1: one\n"
    assert left.result["agents"]["agent2"]["status"] == "gave_up"
    assert left.result["metrics"]["claims_per_agent"] == {"agent1": 1, "agent2": 1}


def test_requests_wait_for_their_answers(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        [
            "coop-request --wait 60 agent2 review 'Is it all right?'; echo code $?",
            "coop-request --wait 1 agent2 question 'and this?'; echo code $?",
            until("answered your request 2"),
            "coop-request agent2 question 'are you there?'; echo code $?",
            "coop-request agent9 question x; echo code $?; coop-respond 1 x; echo code $?",
        ],
        [
            until("Request 1 from agent1"),
            "coop-respond 1 - <<'E'\nIt is: \"fine\" $HOME\nE",
            until("Request 2 from agent1"),
            "sleep 1.5; coop-pending",
            "coop-respond 2 late; coop-respond 2 again; echo code $?",
        ],
    )
    seen = left.observations("agent1")
    assert seen[0] == 'agent2 answered your request 1 (review):\nIt is: "fine" $HOME\n\ncode 0\n'
    assert "no answer within 1 seconds" in seen[1]
    assert "code 3" in seen[1]
    assert "agent2 answered your request 2 (question):\nlate" in updates(left, "agent1")
    assert "code 3" in seen[2]
    assert "agent2 has finished and cannot answer" in seen[2]
    assert "no teammate 'agent9'; your teammates: agent2" in seen[3]
    assert "there is no request 1 to you" in seen[3]
    assert "Request 2 from agent1 (question)" in left.observations("agent2")[1]
    assert "request 2 is answered already" in left.observations("agent2")[2]
    metrics = left.result["metrics"]
    assert (metrics["requests_total"], metrics["requests_answered"]) in ((2, 2), (3, 2))
    assert 1 <= metrics["request_waiting_seconds"] < 60
    requests = left.json("task_log.json")["requests"]
    assert (requests[0]["sender"], requests[0]["kind"], requests[0]["answer"]) == (
        "agent1", "review", 'It is: "fine" $HOME\n',
    )  # fmt: skip


def test_two_who_ask_each_other_do_not_wait_for_nothing(tmp_path: Path) -> None:
    ask = "coop-request --wait 300 {} question 'what do you do?'"
    left = work(
        tmp_path, [ask.format("agent2"), "coop-pending"], [ask.format("agent1"), "coop-pending"]
    )
    seen = left.observations("agent1")[0] + left.observations("agent2")[0]
    assert "asks you" in seen or "has finished and cannot answer" in seen
    assert left.result["duration_seconds"] < 100


def test_the_shared_folder_is_the_same_for_all_and_in_no_patch(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        [
            "mkdir -p /workspace/shared/a; printf 'plan\\0\\377' >/workspace/shared/a/plan; echo x >/workspace/shared/gone",
            until("agent2 wrote /workspace/shared/b"),
            "cat /workspace/shared/b; ls /workspace/shared; cat /workspace/shared/a/plan | od -c | head -n 1",
        ],
        [
            until("agent1 wrote /workspace/shared/a/plan"),
            "od -c /workspace/shared/a/plan | head -n 1; rm /workspace/shared/gone; echo changed >>/workspace/shared/a/plan",
            "echo second >/workspace/shared/b",
            "true",
        ],
        team_git=False,
    )
    assert "p   l   a   n  \\0 377" in left.observations("agent2")[0]
    assert "second\na\nb\n" in left.observations("agent1")[1]
    assert "p   l   a   n  \\0 377   c   h" in left.observations("agent1")[1]
    assert "agent2 removed /workspace/shared/gone" in updates(left, "agent1")
    assert (left.patch("agent1"), left.patch("agent2")) == ("", "")


def test_a_file_is_there_when_its_writer_asks_about_it(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        ["echo words >/workspace/shared/plan; coop-request agent2 review 'see plan'"],
        [until("Request 1"), "cat /workspace/shared/plan; coop-respond 1 good"],
    )
    assert left.observations("agent2")[0].startswith("words\n")
    assert "good" in left.observations("agent1")[0]


def test_a_full_folder_gets_one_clear_line(tmp_path: Path) -> None:
    fill = "cd /workspace/shared; for n in $(seq 20); do head -c 1000000 /dev/zero >f$n; done; "
    left = work(
        tmp_path, [fill + "head -c 1048577 /dev/zero >large", "true", "true"], [until("f16")]
    )
    told = [line for line in updates(left, "agent1").splitlines() if "Not shared" in line]
    assert len(told) == 1
    assert "f" in told[0]
    assert "the folder is full: at most 16777216 bytes in 500 files; remove some" in told[0]


def test_hostile_titles_are_one_line_each(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        [
            "coop-task-create \"$(printf 'a\\nb\\033[31m\\r\\342\\200\\256x')\"",
            "coop-task-create \"$(head -c 100000 /dev/zero | tr '\\0' x)\"; echo code $?",
            "coop-task-create '  '; echo code $?; coop-task-create -- --assign; echo code $?",
            "coop-task-create $'\\xff\\xfe'; coop-task-list",
        ],
        [until(r"#3")],
    )
    seen = left.observations("agent1")
    assert seen[0] == "#1 [open] nobody: a\\nb\\x1b[31m\\r\\u202ex\n"
    assert "the text is too long: at most 1000 characters" in seen[1]
    assert seen[2].count("code 2") == 1
    assert "[open] nobody: --assign" in seen[2]
    assert left.json("tasks.json")["tasks"][0]["title"] == "a\nb\x1b[31m\r\u202ex"
    assert "\x1b" not in updates(left, "agent2")


def test_what_the_lead_merged_is_recorded_apart_from_the_verdict(tmp_path: Path) -> None:
    commit = "git add -A && git commit -qm done"
    left = work(
        tmp_path,
        [
            f"{feature(1)} && {commit}",
            until("pushed"),
            "git fetch -q team && git merge -q --no-edit team/agent2",
        ],
        [f"{feature(2)} && {commit} && git push -q team HEAD:agent2 && send_message agent1 pushed"],
        auto_eval=True,
    )
    assert "feature 2" in left.patch("agent1")
    evaluation = left.evaluation
    assert (evaluation["overall_success"], evaluation["integrated_by_lead"]) == (True, True)
    assert evaluation["merged"]["merge_status"] == "clean"
    assert evaluation["lead"]["features"]["2"]["success"]


def test_a_lead_that_never_integrates_changes_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = work(tmp_path, [feature(1)], [feature(2)], auto_eval=True)
    assert (left.evaluation["overall_success"], left.evaluation["integrated_by_lead"]) == (
        True,
        False,
    )
    assert "feature 2" not in left.patch("agent1")
    assert (left.folder / "tests/lead-f2.txt").exists()
    capsys.readouterr()
    assert main(["report", "r", "--log-dir", str(tmp_path / "logs")]) == 0
    table = capsys.readouterr().out.partition("Teams")[2].split()
    assert table[:4] == ["run", "pairs", "by", "lead"]
    assert table[table.index("files") + 1 :][:3] == ["r", "1", "0"]


def test_a_team_is_compared_with_one_agent_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(tmp_path, [feature(1)], ["true"], auto_eval=True, run_name="together")
    run_tiny(tmp_path, "oracle", setting="solo", run_name="alone")
    capsys.readouterr()
    assert (
        main(["compare", "alone", "together", "--log-dir", str(tmp_path / "logs"), "--json"]) == 0
    )
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (compared["first"], compared["second"]) == ("alone:solo", "together:team")
    assert compared["coordination_deficit"]["value"] == 1.0


OFF = {
    "messages": ("send_message", "read_messages"),
    "git": (),
    "task_list": TASK_COMMANDS,
    "scratchpad": (),
    "protocol": REQUEST_COMMANDS,
    "auto_refresh": (),
    "roles": (),
}
WORDS = {
    "messages": "## Messages",
    "git": "## Sharing with git",
    "task_list": "## Tasks",
    "scratchpad": "## The shared folder",
    "protocol": "## Requests",
    "auto_refresh": "of others are shown to you between",
    "roles": "## You lead the team",
}


class Look:
    """Says what it is told and what it has."""

    uses_model = False

    def run(self, session: AgentSession) -> None:
        session.think(session.prompt)
        commands = " ".join(command for commands in OFF.values() for command in commands)
        session.execute(
            f"for n in {commands}; do command -v $n; done; ls -d /workspace/shared 2>&-; git remote; true"
        )
        session.think(" ".join(session.tools))


@pytest.mark.parametrize("part", [None, *TEAM_PARTS])
def test_a_switch_removes_exactly_its_part(tmp_path: Path, part: str | None) -> None:
    keywords = TEAM_PARTS | {"git": "team_git"}
    options: dict[str, Any] = {keywords[part]: False} if part else {}
    left = run_tiny(
        tmp_path,
        "tests.integration.runner.test_team:Look",
        setting="team",
        auto_eval=False,
        **options,
    )
    prompt, has, tools = [
        step["args"].get("content") or step["observation"] for step in left.trajectory()["steps"]
    ]
    for one, words in WORDS.items():
        assert (words in prompt) == (one != part), one
    for one, commands in OFF.items():
        for command in commands:
            assert (f"/{command}\n" in has) == (one != part), command
    assert ("/workspace/shared" in has) == (part != "scratchpad")
    assert ("team\n" in has) == (part != "git")
    expected = {"task_list": REQUEST_COMMANDS, "protocol": TASK_COMMANDS, "mcp": ()}
    names = expected.get(part or "", (*TASK_COMMANDS, *REQUEST_COMMANDS))
    assert tools.split() == list(names)
    assert left.result["team_features"] == {one: one != part for one in TEAM_PARTS}


def test_without_refresh_changes_are_seen_by_who_looks(tmp_path: Path) -> None:
    left = work(
        tmp_path,
        ["coop-task-create one; echo x >/workspace/shared/f", "send_message agent2 done"],
        [until("done"), "coop-task-list; cat /workspace/shared/f"],
        team_auto_refresh=False,
    )
    assert left.observations("agent2") == ["#1 [open] nobody: one\nx\n"]
    assert updates(left, "agent2") == ""


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = [
        "run",
        "--setting",
        "team",
        "--dataset-dir",
        "demo",
        "--backend",
        "local",
        "-a",
        "oracle",
    ]
    assert main([*call, "-f", "1"]) == 2
    assert main([*call, "--prompts", str(tmp_path)]) == 2
    (tmp_path / "lead.md.j2").write_text("{{ nonsense }}")
    assert main(["prompts", *call[1:], "--prompts", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "different features" in lines[0]
    assert "not a folder with templates" in lines[1]
    assert "'nonsense' is undefined" in lines[2]


def test_prompts_are_shown_and_can_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "member.md.j2").write_text("Do as {{ lead }} says.\n")
    call = [
        "prompts",
        "--setting",
        "team",
        "--dataset-dir",
        "demo",
        "--backend",
        "local",
        "-a",
        "oracle",
    ]
    assert main([*call, "--prompts", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    lead, member = shown.out.split("===== agent2")
    assert "## You lead the team" in lead
    assert "Do as agent1 says." in member
    assert "## You are a member" not in member
    assert "## Tasks" in member
    assert "/templates;" in shown.err
