"""What must be true after every round: each claim of the campaign is a function here, and `test_campaign` breaks each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.storage import read_json
from tests.support.sandbox_processes import sandbox_processes

if TYPE_CHECKING:
    from cooperbench.backends.docker.engine import Engine

PAIRS = 6
CALLS_PER_AGENT = 5
DOLLARS_PER_CALL = 100 * 0.15e-6 + 10 * 0.6e-6
VERDICT = ("individual_success", "merge_success", "overall_success", "overall_success_strict")
EMPTY_CACHE = ("sandboxes/*/*", "**/.writing-*", "**/*.half")
"""What only a running harness has in the cache."""


def read_pairs(run: Path) -> dict[str, Any]:
    """What every undisturbed run says of every pair."""
    return {folder.name: _read_pair(folder) for folder in sorted(run.glob("coop/*/*/*"))}


def _read_pair(folder: Path) -> dict[str, Any]:
    result, verdict = read_json(folder / "result.json"), read_json(folder / "eval.json")
    if result is None or verdict is None or not isinstance(result.get("agents"), dict):
        return {"broken": f"{result is None} {verdict is None}"}
    messages = json.loads((folder / "conversation.json").read_text())["messages"]
    return {
        "status": (result["status"], verdict["status"]),
        "agents": {name: (one["status"], one["steps"]) for name, one in result["agents"].items()},
        "patches": {name: (folder / f"{name}.patch").read_text() for name in result["agents"]},
        "verdict": {name: verdict[name] for name in VERDICT},
        "merge": verdict["merged"]["merge_status"],
        "pushes": result["git"]["pushes"],
        "sent": {name: _told(messages, "from", name) for name in result["agents"]},
        "shown": {name: _shown(messages, name) for name in result["agents"]},
    }


def _told(messages: list[dict[str, Any]], side: str, agent: str) -> list[str]:
    """In their order on record; two agents write at the same time, so only one side has an order."""
    return [str(one["message"]) for one in messages if one[side] == agent]


def _shown(messages: list[dict[str, Any]], agent: str) -> list[str]:
    """To an agent, in the order in which it saw them."""
    seen = [one for one in messages if one["to"] == agent and one["delivered_at"]]
    return _told(
        sorted(seen, key=lambda one: (one["delivered_step"], one["sequence"])), "to", agent
    )


def different_pairs(run: Path, expected: dict[str, Any]) -> list[str]:
    pairs = read_pairs(run)
    return [
        f"{name} differs: {_difference(expected.get(name), pairs.get(name))}"
        for name in sorted({*expected, *pairs})
        if pairs.get(name) != expected.get(name)
    ]


def lost_messages(expected: dict[str, Any]) -> list[str]:
    """Of the undisturbed run itself: what all others are compared with must be right."""
    return [
        f"{name}: {one['shown']} shown of {one['sent']}"
        for name, one in expected.items()
        if one.get("shown") != {"agent1": one["sent"]["agent2"], "agent2": one["sent"]["agent1"]}
        or any(len(texts) != 2 for texts in one["sent"].values())
    ]


def wrong_money(run: Path, answered: int, begun: int, lost: int) -> list[str]:
    """What finished pairs cost; and all that was spent: each answer, except those that nobody was left to receive.

    `begun` answers broke off and may be counted; `lost` is how many may have been under way when connections were cut.
    """
    summary = read_json(run / "summary.json") or {}
    cost, spent = summary.get("cost", -1), summary.get("spent", -1)
    due = PAIRS * 2 * CALLS_PER_AGENT * DOLLARS_PER_CALL
    found = [] if abs(cost - due) < 1e-9 else [f"the summary says ${cost}, not ${due}"]
    # One call of each agent may have been under way when an attempt was broken off.
    broken_off = len(list(run.glob("attempts/coop/*/*/*/*")))
    least = (answered - 2 * broken_off - lost) * DOLLARS_PER_CALL
    most = (answered + begun) * DOLLARS_PER_CALL
    if not max(least, due) - 1e-9 <= spent <= most + 1e-9:
        found.append(
            f"${spent} spent, not ${max(least, due)} to ${most} ({broken_off} attempts broken off)"
        )
    return found


def leftovers(mark: str, temporary: Path, logs: Path, cache: Path) -> list[str]:
    found = [f"process {pid}: {words[:120]}" for pid, words in processes(mark, mounted_from(cache))]
    found += [f"temporary file {path.name}" for path in temporary.iterdir()]
    found += [f"temporary file {path.relative_to(logs)}" for path in logs.rglob(".writing-*")]
    found += [
        f"in the cache: {path.relative_to(cache)}"
        for name in EMPTY_CACHE
        for path in cache.glob(name)
    ]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [f"mount {line.split()[1]}" for line in mounts if f" {cache}" in line]


def engine_leftovers(engine: Engine, folder: Path) -> list[str]:
    """Of an engine that nobody else uses. Its own mounts are those of containers that run."""
    usual = {"bridge", "host", "none"}
    found = [f"container {one['Names']}" for one in engine.api.containers(all=True)]
    found += [f"network {one['Name']}" for one in engine.api.networks() if one["Name"] not in usual]
    found += [f"process of a container: {pid} {words[:120]}" for pid, words in contained(folder)]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [
        f"mount {line.split()[1]}" for line in mounts if f" {folder}/data/overlay2/" in line
    ]


def mounted_from(cache: Path) -> str:
    """What a mount of something in the cache has in its description, also where /tmp is a file system of its own."""
    return "/".join(cache.parts[-3:])


def processes(mark: str, mounted: str = "") -> list[tuple[int, str]]:
    """Those that have the mark in their arguments, environment or working directory, and those of sandboxes."""
    found = sandbox_processes(mounted) if mounted else {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            places = words + (entry / "environ").read_bytes() + bytes((entry / "cwd").readlink())
        except OSError:
            continue
        if mark.encode() in places:
            found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return list(found.items())


def contained(engine_folder: Path) -> list[tuple[int, str]]:
    """Processes whose root is a container's of this engine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            lines = (entry / "mountinfo").read_text().splitlines()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(line.split()[4] == "/" and f"{engine_folder}/" in line for line in lines):
            found.append((int(entry.name), words))
    return found


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        return "; ".join(
            f"{key}: {str(found.get(key))[:200]} instead of {str(expected.get(key))[:200]}"
            for key in keys
        )
    return f"{str(found)[:200]} instead of {str(expected)[:200]}"
