"""Everything that the page shows of one attempt at a pair: lanes, messages, diffs, tests, files.

Read from disk for one pair at a time. Long texts are cut, and what was cut is said: the whole is in the logs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.llm_judge_prompt import CAUSES, SYMPTOMS
from cooperbench.report.page.diffs import side_by_side, unreadable
from cooperbench.report.page.overview import outcome_of
from cooperbench.report.records import (
    is_list,
    is_object,
    mapping,
    number,
    parse_time,
    read_bytes,
    read_object,
    text_or_none,
)
from cooperbench.report.states import unsound_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.report.records import PairData, SentMessage

MOST_CHARACTERS = 12_000
"""Of one text of a trajectory, e.g. what a command printed."""
MOST_FILE_CHARACTERS = 60_000
_SHOWN_FILES = ("result.json", "eval.json", "conversation.json", "judge.json", "merged.patch")
_HEADLINE_CHARACTERS = 160
_MOST_SYMPTOMS = 20
"""Of a judge's label, and quotes of each."""
_MOST_OPINION_CHARACTERS = 1_000


def pair_detail(pair: PairData) -> dict[str, Any]:
    """All of one attempt, as JSON for the page."""
    conversation = pair.conversation()
    clock = _Clock(pair)
    entries: list[dict[str, Any]] = []
    problems = [*pair.problems, *conversation.problems]
    for lane, agent_id in enumerate(pair.agent_ids):
        trajectory = pair.trajectory(agent_id)
        problems += [f"{agent_id}: {line}" for line in trajectory.problems]
        entries += _entries(lane, trajectory.entries, clock)
    messages = [_message(message, clock) for message in conversation.messages]
    entries = _without_told(entries, conversation.messages, pair.agent_ids)
    patches = [(agent_id, pair.patch(agent_id)) for agent_id in pair.agent_ids]
    merged = mapping(pair.evaluation, "merged")
    conflicting = merged.get("conflicting_files")
    return {
        "outcome": outcome_of(pair),
        "error": pair.error,
        "unsound": unsound_text(pair.unsound) if pair.unsound else None,
        "problems": problems,
        "agents": [_agent(pair, agent_id) for agent_id in pair.agent_ids],
        "entries": sorted(entries, key=lambda entry: entry["t"]),
        "messages": messages,
        "diffs": side_by_side(patches, conflicting if isinstance(conflicting, list) else ()),
        "unreadable": unreadable(patches) if pair.result is not None else [],
        "merged": _merged(merged) if pair.verdicts is not None else None,
        "tests": list(_tests(pair)),
        "opinion": _opinion(pair),
        "files": list(_files(pair)),
    }


class _Clock:
    """Seconds since the first agent of the pair began."""

    def __init__(self, pair: PairData) -> None:
        stamps = [text_or_none(pair.result or {}, "started_at")]
        if stamps[0] is None:
            stamps = [
                text_or_none(entry, "timestamp")
                for agent_id in pair.agent_ids
                for entry in pair.trajectory(agent_id).entries[:1]
            ]
        self._start = min(filter(None, map(parse_time, stamps)), default=None)

    def seconds(self, stamp: str | None) -> float | None:
        time = parse_time(stamp)
        if time is None:
            return None
        if self._start is None:
            self._start = time
        return round(max(0.0, (time - self._start).total_seconds()), 3)


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Beginning and end of a long text: errors stand at the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out; the whole is in the logs …]\n{text[-half:]}"


def _entries(lane: int, entries: tuple[Mapping[str, Any], ...], clock: _Clock) -> Iterator[dict[str, Any]]:
    last = 0.0
    for entry in entries:
        args = mapping(entry, "args")
        action = str(entry.get("action", ""))
        seconds = clock.seconds(text_or_none(entry, "timestamp"))
        # An entry without a time of its own stands after the one before it.
        last = last if seconds is None else seconds
        body = _body(action, args)
        record: dict[str, Any] = {
            "lane": lane,
            "kind": action,
            "t": last,
            "head": _headline(action, args, body),
        }
        if isinstance(entry.get("step"), int):
            record["step"] = entry["step"]
        if number(entry, "duration_seconds"):
            record["took"] = round(number(entry, "duration_seconds"), 2)
        if entry.get("returncode"):
            record["code"] = entry["returncode"]
        if entry.get("timed_out") is True:
            record["late"] = True
        if action == "receive_message":
            record["message"] = int(number(args, "sequence"))
        if body and body != record["head"]:
            record["body"] = cut(body)
        thought = text_or_none(entry, "thought")
        if thought:
            record["thought"] = cut(thought)
        seen = entry.get("observation")
        if isinstance(seen, str) and seen.strip():
            record["seen"] = cut(seen)
        yield record


def _body(action: str, args: Mapping[str, Any]) -> str:
    name = {"run": "command", "apply_patch": "patch"}.get(action, "content")
    text = args.get(name)
    if isinstance(text, str):
        return text
    return json.dumps(args, ensure_ascii=False, indent=1) if args else ""


def _headline(action: str, args: Mapping[str, Any], body: str) -> str:
    text = str(args.get({"write_file": "path", "apply_patch": "name"}.get(action, ""), "")) or body
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _HEADLINE_CHARACTERS else line[:_HEADLINE_CHARACTERS] + " …"


def _without_told(
    entries: list[dict[str, Any]], messages: Sequence[SentMessage], agent_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Sending a message is shown by the message itself."""
    told = {(one.sender, one.sender_step) for one in messages}
    return [
        one
        for one in entries
        if one["kind"] != "send_message" or (agent_ids[one["lane"]], one.get("step")) not in told
    ]


def _message(message: SentMessage, clock: _Clock) -> dict[str, Any]:
    return {
        "number": message.sequence,
        "from": message.sender,
        "to": message.recipient,
        "text": cut(message.text),
        "t": clock.seconds(message.timestamp) or 0.0,
        "read": clock.seconds(message.delivered_at),
    }


def _agent(pair: PairData, agent_id: str) -> dict[str, Any]:
    record: dict[str, Any] = {"id": agent_id, "patch_bytes": len(pair.patch(agent_id) or b"")}
    for known in (agent for agent in pair.agents if agent.agent_id == agent_id):
        record |= {**vars(known), "record": None, "error": text_or_none(known.record, "error")}
    return record


def _merged(merged: Mapping[str, Any]) -> dict[str, Any]:
    files = merged.get("conflicting_files")
    return {
        "status": text_or_none(merged, "merge_status"),
        "strategy": text_or_none(merged, "strategy"),
        "success": merged.get("success") is True,
        "detail": cut(text_or_none(merged, "detail") or "", 2_000),
        "files": [str(path) for path in files] if isinstance(files, list) else [],
    }


def _tests(pair: PairData) -> Iterator[dict[str, Any]]:
    """One test run a line: whose patch, which feature's tests, what came out."""
    outputs = pair.test_outputs()
    subjects = pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged")
    for subject in subjects:
        for feature, run in mapping(mapping(pair.evaluation, subject), "features").items():
            if not isinstance(run, dict):
                continue
            yield {
                "subject": subject,
                "feature": feature,
                "success": run.get("success") is True,
                "passed": int(number(run, "tests_passed")),
                "failed": int(number(run, "tests_failed")),
                "skipped": int(number(run, "tests_skipped")),
                "code": run.get("exit_code"),
                "late": run.get("timed_out") is True,
                "seconds": number(run, "duration_seconds"),
                "error": text_or_none(run, "error"),
                "output": cut(outputs.get(f"{subject}-f{feature}", "")),
            }


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


def _opinion(pair: PairData) -> dict[str, Any] | None:
    """A judge's labels from judge.json, kept apart from what is computed; None where there is none.

    The file may have been written by anybody: only text is taken.
    """
    record, problem = read_object(pair.paths.judgement)
    if record is None and problem is None:
        return None
    label = (record or {}).get("label")
    opinion: dict[str, Any] = {
        "model": text_or_none(record or {}, "model"),
        "judged_at": text_or_none(record or {}, "judged_at"),
        "problem": problem,
        "cause": None,
        "meaning": None,
        "summary": "",
        "symptoms": [],
    }
    if is_object(label):
        cause = _text(label, "cause")
        opinion |= {
            "cause": cause,
            "meaning": CAUSES.get(cause),
            "summary": _text(label, "summary"),
            "symptoms": [_symptom(one) for one in _objects(label, "symptoms")],
        }
    return opinion


def _symptom(record: Mapping[str, Any]) -> dict[str, Any]:
    name = _text(record, "symptom")
    return {
        "name": name.replace("_", " "),
        "meaning": SYMPTOMS.get(name),
        "why": _text(record, "why"),
        "quotes": [_quote(one) for one in _objects(record, "quotes")],
    }


def _quote(record: Mapping[str, Any]) -> dict[str, Any]:
    source = _text(record, "source")
    kind, _, number = source.partition(":")
    message = int(number) if kind == "message" and number.isascii() and number.isdigit() else None
    return {"source": source.replace(":", " "), "message": message, "text": _text(record, "text")}


def _objects(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    listed = record.get(key)
    return [one for one in listed[:_MOST_SYMPTOMS] if is_object(one)] if is_list(listed) else []


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value[:_MOST_OPINION_CHARACTERS] if isinstance(value, str) else ""
