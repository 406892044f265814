"""The task list where there is much of it, and what its records say."""

from __future__ import annotations

import threading
import time
from collections import Counter

from cooperbench.team.task_list import MAX_CHANGES, TaskList
from cooperbench.team.teammates import Teammates
from cooperbench.team.tools import make_tools, run_command

AGENTS = tuple(f"agent{number}" for number in range(1, 17))


def make() -> tuple[TaskList, list[tuple[str, str, str]]]:
    notices: list[tuple[str, str, str]] = []
    return TaskList(Teammates(AGENTS, lambda _: 1, lambda *notice: notices.append(notice))), notices


def test_ten_thousand_tasks_are_listed_in_bounds_and_fast() -> None:
    tasks, _ = make()
    tools = make_tools("agent1", tasks, None)
    started = time.monotonic()
    for number in range(1, 10_001):
        tasks.create("agent1", f"task {number} " + "x" * 900)
    for number in range(1, 9_001):
        tasks.update("agent1", number, "done")
    listing = run_command("coop-task-list", tools["coop-task-list"], [])
    assert time.monotonic() - started < 20
    assert listing.text.startswith("#9001 [open] nobody: task 9001 xxx")
    assert listing.text.endswith("… and 9,900 more tasks\n")
    assert len(listing.text) < 30_000
    open_ones = run_command("coop-task-list", tools["coop-task-list"], ["--open"])
    assert open_ones.text.endswith("… and 900 more tasks\n")
    assert tasks.metrics({"agent2": ["src/x"]}).tasks_done == 9_000


def test_an_agent_cannot_fill_the_record_without_end() -> None:
    tasks, _ = make()
    for _ in range(MAX_CHANGES):
        tasks.create("agent1", "again")
    refused = tasks.create("agent1", "once more")
    assert (refused.code, "Limit" in refused.text) == (2, True)
    assert tasks.create("agent2", "mine").code == 0


def test_sixteen_who_claim_at_once_have_one_winner_each() -> None:
    tasks, _ = make()
    for number in range(100):
        tasks.create("agent1", str(number))
    won: Counter[int] = Counter()
    start = threading.Barrier(len(AGENTS))

    def race(agent_id: str) -> None:
        start.wait()
        for number in range(1, 101):
            if tasks.claim(agent_id, number).code == 0:
                won[number] += 1

    threads = [threading.Thread(target=race, args=(agent_id,)) for agent_id in AGENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(won.values()) == {1}
    assert len(won) == 100
    assert tasks.metrics({}).claims_lost == 1_500


def test_who_may_change_a_task() -> None:
    tasks, notices = make()
    tasks.create("agent1", "change src/a.py and b.py", "agent2")
    assert tasks.claim("agent3", 1).text == "task 1 belongs to agent2"
    assert tasks.update("agent3", 1, "done").code == 2
    assert tasks.update("agent1", 1, "blocked", "wait").code == 0
    assert tasks.tasks()[0].owner == "agent2"
    assert tasks.update("agent1", 1, "open").code == 0
    assert tasks.tasks()[0].owner is None
    assert tasks.update("agent3", 1, "in_progress").code == 0
    assert tasks.claim("agent3", 1).code == 0
    assert tasks.update("agent3", 1, "done").code == 0
    assert tasks.claim("agent3", 1).text == "task 1 is done"
    line = "agent1 created #1 [open] agent2: change src/a.py and b.py"
    assert notices[:15] == [(other, "task 1", line) for other in AGENTS[1:]]
    changed = {"agent3": ["src/a.py"], "agent4": ["src/a.py", "lib/b.py", "other/c.py"]}
    metrics = tasks.metrics(changed)
    assert metrics.changes_to_files_of_others_tasks == 2
    assert metrics.claims_per_agent["agent3"] == 2
