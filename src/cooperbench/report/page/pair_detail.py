"""Everything that the page shows of one attempt at a pair: lanes, messages, diffs, tests, files.

Read from disk for one pair at a time, and passed on as the files have it. Long texts are cut, and what was cut is said:
the whole is in the logs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.measures import PairFiles, coordination
from cooperbench.report.page.overview import outcome_of
from cooperbench.report.records import mapping, read_bytes, read_object, seconds_between, text_or_none
from cooperbench.report.states import ENDED, suspicious_text, unsound_text
from cooperbench.text import head_and_tail

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from cooperbench.report.coordination.changes import ChangedFile, Hunk, Work
    from cooperbench.report.coordination.measures import Coordination
    from cooperbench.report.records import PairData, SentMessage

MOST_CHARACTERS = 12_000
"""Of one text of a trajectory, e.g. what a command printed."""
MOST_FILE_CHARACTERS = 60_000
MOST_LINES_OF_A_FILE = 2_000
_SHOWN_FILES = ("result.json", "eval.json", "conversation.json", "judge.json", "merged.patch")
_OF_ENTRIES = ("action", "step", "duration_seconds", "returncode", "timed_out", "thought", "observation")


def pair_detail(pair: PairData) -> tuple[dict[str, Any], Coordination | None]:
    """All of one attempt, as JSON for the page; and what was found in it where the agents came to an end."""
    files = PairFiles(pair)
    found = coordination(pair, files) if pair.state in ENDED else None
    start = _start(pair, files)
    works = [*files.works.values()]
    merged = mapping(pair.evaluation, "merged") if pair.verdicts is not None else {}
    detail = {
        "outcome": outcome_of(pair),
        "error": pair.error,
        "unsound": unsound_text(pair.unsound) if pair.unsound else "",
        "suspicious": [cut(suspicious_text(one), 500) for one in pair.suspicious],
        "problems": [*pair.problems, *files.problems],
        "agents": [_agent(pair, agent_id) for agent_id in pair.agent_ids],
        "entries": _entries(pair, files, start),
        "messages": [_message(message, start) for message in files.conversation.messages],
        "diffs": side_by_side(works, pair.conflicting_files),
        "unreadable": [work.agent_id for work in works if not work.usable and pair.result is not None],
        "merged": {name: value for name, value in merged.items() if name != "features"} or None,
        "tests": list(_tests(pair)),
        "opinion": read_object(pair.paths.judgement)[0],
        "files": list(_files(pair)),
        "coordination": asdict(found) if found else None,
    }
    return detail, found


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Beginning and end of a long text: errors stand at the end."""
    return head_and_tail(text, most, "\n[… {cut} characters left out; the whole is in the logs …]\n")


def _start(pair: PairData, files: PairFiles) -> str:
    """When the first agent of the pair began: times on the page are seconds since then."""
    entries = [entry for one in files.trajectories.values() for entry in one.entries[:1]]
    stamps = [text_or_none(entry, "timestamp") for entry in entries]
    return text_or_none(pair.result, "started_at") or min(filter(None, stamps), default="")


def _entries(pair: PairData, files: PairFiles, start: str) -> list[dict[str, Any]]:
    """Of all agents in time; sending a message is shown by the message itself."""
    told = {(one.sender, one.sender_step) for one in files.conversation.messages}
    found = []
    for lane, agent_id in enumerate(pair.agent_ids):
        last = 0.0
        for entry in files.trajectories[agent_id].entries:
            # An entry without a time of its own stands after the one before it.
            seconds = seconds_between(start, entry.get("timestamp"))
            last = last if seconds is None else seconds
            if entry.get("action") == "send_message" and (agent_id, entry.get("step")) in told:
                continue
            kept = {name: _cut_value(entry[name]) for name in _OF_ENTRIES if entry.get(name)}
            args = {name: _cut_value(value) for name, value in mapping(entry, "args").items()}
            found.append({"lane": lane, "t": last, **kept, "args": args})
    return sorted(found, key=lambda entry: entry["t"])


def _cut_value(value: object) -> object:
    return cut(value) if isinstance(value, str) else value


def _message(message: SentMessage, start: str) -> dict[str, Any]:
    return {
        "number": message.sequence,
        "from": message.sender,
        "to": message.recipient,
        "text": cut(message.text),
        "t": seconds_between(start, message.timestamp) or 0.0,
        "read": seconds_between(start, message.delivered_at),
    }


def _agent(pair: PairData, agent_id: str) -> dict[str, Any]:
    record: dict[str, Any] = {"id": agent_id, "patch_bytes": len(pair.patch(agent_id) or b"")}
    for known in (agent for agent in pair.agents if agent.agent_id == agent_id):
        record |= {**vars(known), "record": None, "error": text_or_none(known.record, "error")}
    return record


def _tests(pair: PairData) -> Iterator[dict[str, Any]]:
    """One test run a line: whose patch, which feature's tests, what came out."""
    outputs = pair.test_outputs()
    subjects = pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged")
    for subject in subjects:
        runs = mapping(mapping(pair.evaluation, subject), "features")
        for feature in runs:
            output = cut(outputs.get(f"{subject}-f{feature}", ""))
            yield {**mapping(runs, feature), "subject": subject, "feature": feature, "output": output}


def _files(pair: PairData) -> Iterator[dict[str, Any]]:
    """What lies in the pair's folder; small text files with their content."""
    folder = pair.paths.folder
    shown = {*_SHOWN_FILES, *(f"{agent_id}.patch" for agent_id in pair.agent_ids)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or "/." in f"/{name}":
            continue
        record: dict[str, Any] = {"name": name, "bytes": path.stat().st_size}
        if name in shown:
            record["text"] = cut((read_bytes(path) or b"").decode("utf-8", "replace"), MOST_FILE_CHARACTERS)
        yield record


def side_by_side(works: Sequence[Work], conflicting: Collection[str]) -> list[dict[str, Any]]:
    """A record for each file that anyone changed; `sides` has an entry a patch, None where it leaves the file alone.

    Hunks are marked whose changes overlap or are adjacent in the base, as conflicting in a file that git could not
    merge: git's own conflict is computed on the whole file, this says where to look.
    """
    paths = dict.fromkeys(file.path for work in works for file in work.files)
    records = [_file(path, works, path in conflicting) for path in paths]
    return sorted(records, key=lambda one: (not one["conflict"], not one["overlap"], not one["shared"]))


def _file(path: str, works: Sequence[Work], conflict: bool) -> dict[str, Any]:
    touched = [next((file for file in work.files if file.path == path), None) for work in works]
    present = [file for file in touched if file is not None]
    sides = [
        None if file is None else _side(file, [one for one in present if one is not file], conflict)
        for file in touched
    ]
    return {
        "path": path,
        "shared": len(present) > 1,
        "conflict": conflict,
        "overlap": any(hunk["mark"] for side in sides if side for hunk in side["hunks"]),
        "sides": sides,
    }


def _side(file: ChangedFile, others: Sequence[ChangedFile], conflict: bool) -> dict[str, Any]:
    left = MOST_LINES_OF_A_FILE
    hunks = []
    for hunk in file.hunks:
        lines = hunk.lines[: max(0, left)]
        left -= len(hunk.lines)
        mark = "" if not _meets(hunk, others) else "conflict" if conflict else "overlap"
        more = {"lines": lines, "cut": len(hunk.lines) - len(lines)}
        hunks.append({"start": hunk.old_start, "heading": hunk.heading, "mark": mark, **more})
    changed = sum(len(change.removed) + len(change.added) for change in file.changes)
    return {"new": file.is_new, "binary": file.is_binary, "lines": changed, "hunks": hunks}


def _meets(hunk: Hunk, others: Sequence[ChangedFile]) -> bool:
    theirs = [change for other in others for change in other.changes]
    return any(mine.meets(other) in ("overlapping", "adjacent") for mine in hunk.changes for other in theirs)
