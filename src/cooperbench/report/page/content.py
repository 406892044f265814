"""What the page shows, as data: the overview, and one attempt at a pair.

Only result.json and eval.json are needed for the overview, so it is quick enough to be made again while a run goes on.
The details of a pair are passed on as the files have them. Long texts are cut, which is said: the whole is in the logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.diff import ChangedFile
from cooperbench.errors import UserError
from cooperbench.records.judgement import Judgement
from cooperbench.records.tasks import TaskListRecord
from cooperbench.records.trajectory import step_object
from cooperbench.report.analysis import TEAM_SUMS, analyse
from cooperbench.report.compare import Comparison, analyse_studies
from cooperbench.report.coordination import Coordination, PairFiles, coordination
from cooperbench.report.dataset_files import FeatureKey, read_feature_titles
from cooperbench.report.failures import failed_tests, failure_reason
from cooperbench.report.llm_judge import CAUSES, SYMPTOMS
from cooperbench.report.loading import Run, Side, left_out_lines, sides_of
from cooperbench.report.pairs import (
    ENDED,
    LOSSES,
    NOT_EVALUATED,
    STATES,
    VERDICTS,
    Meaning,
    PairData,
)
from cooperbench.report.patches import AgentPatch, meeting_changes
from cooperbench.report.tables import ablation_table
from cooperbench.storage import read_bytes, seconds_between, utc_now
from cooperbench.text import head_and_tail

MAX_CHARACTERS = 12_000
"""Of one text of a trajectory, e.g. what a command printed."""
MAX_FILE_CHARACTERS = 60_000
MAX_LINES_OF_A_FILE = 2_000
_SHOWN_FILES = {
    "result.json", "eval.json", "conversation.json", "task_log.json", "judge.json", "merged.patch",
}  # fmt: skip
_OF_ENTRIES = (
    "action",
    "step",
    "duration_seconds",
    "returncode",
    "timed_out",
    "thought",
    "observation",
)
SCHEMA = "cooperbench.page/3"
_MAX_PROBLEMS = 2_000
_MAX_TASKS = 100
OUTCOMES: dict[str, Meaning] = {
    **{str(loss): one for loss, one in LOSSES.items()},
    "running": Meaning("▸", "running", "the agents are at work"),
    **{state: STATES[state] for state in NOT_EVALUATED},
}
"""What the page counts, draws and filters by: the states, with `failed` in three kinds, and `running`."""


def outcome_of(pair: PairData) -> str:
    if pair.state == "missing" and pair.paths.folder.is_dir():
        return "running"
    return pair.loss or pair.state


def numbered_pairs(runs: Sequence[Run]) -> list[PairData]:
    """Every attempt that there is something to show of; its place in this list is its number on the page."""
    return [pair for side in sides_of(runs) for pair in side.pairs.values()]


def title_of(runs: Sequence[Run]) -> str:
    return "CooperBench: " + ", ".join(run.name for run in runs)


def make_overview(runs: Sequence[Run]) -> dict[str, Any]:
    series = sides_of(runs)
    analysis = analyse(runs, "repo")
    difficulty = analysis.difficulty
    one_dataset = len({run.dataset for run in runs}) == 1
    has_curve = one_dataset and bool(difficulty.curves) and difficulty.curves[0].is_telling
    pairs = _pairs(
        series, read_feature_titles(runs, {key for side in series for key in side.pairs})
    )
    outcomes = [cell["outcome"] for pair in pairs for cell in pair["cells"] if cell]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "time": utc_now(),
        "outcomes": {
            name: {**one._asdict(), "judged": name in LOSSES} for name, one in OUTCOMES.items()
        },
        "verdicts": dict(VERDICTS),
        "labels": {**CAUSES, **SYMPTOMS},
        "series": [
            {"id": side.label, "run": side.run.name, "setting": side.setting} for side in series
        ],
        "rates": [asdict(row) for row in analysis.rates],
        "deficits": _deficits(analysis.coordination_deficits, series),
        "without_solo": analysis.coop_without_solo,
        "left_out": left_out_lines(runs),
        "difficulty": asdict(difficulty) | {"scores": len(difficulty.scores)}
        if has_curve
        else None,
        "agent_curves": [asdict(curve) for curve in analysis.agent_curves],
        "ablations": _ablations(runs),
        "team": {"columns": TEAM_SUMS, "rows": [asdict(row) for row in analysis.team]},
        "coordination": [],
        "repos": sorted({pair["repo"] for pair in pairs}),
        "pairs": pairs,
        "problems": analysis.problems[:_MAX_PROBLEMS],
        "finished": not {"running", "missing", "unevaluated"}.intersection(outcomes),
    }


def _deficits(comparisons: Sequence[Comparison], series: Sequence[Side]) -> list[dict[str, Any]]:
    """Return a row for each model; its label also names setting and run where a model has several."""
    known = [comparison for comparison in comparisons if comparison.n]
    sides = {side.label: side for side in series}
    models = [sides[comparison.second].run.configuration for comparison in known]
    rows = []
    for comparison, model in zip(known, models, strict=True):
        label = model if models.count(model) == 1 else f"{model} ({comparison.second})"
        setting = sides[comparison.second].setting
        rows.append({**asdict(comparison), "label": label, "setting": setting})
    return rows


def _ablations(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The tables of the terminal, headings first; none where arms cannot be compared."""
    try:
        tables = [ablation_table(study) for study in analyse_studies(runs)]
    except UserError:
        return []
    return [{"title": table.title, "rows": table.texts, "notes": table.notes} for table in tables]


def _pairs(series: Sequence[Side], titles: Mapping[FeatureKey, str]) -> list[dict[str, Any]]:
    """Each with a cell for each series, None where it is not in it."""
    by_series = [side.pairs for side in series]
    cells = iter(range(sum(map(len, by_series))))
    numbered = [{key: (next(cells), pair) for key, pair in pairs.items()} for pairs in by_series]
    return [
        {
            "order": order,
            "repo": key.repo,
            "task": key.task_id,
            "features": key.features,
            "name": key.group,
            "titles": [titles.get((key.repo, key.task_id, feature)) for feature in key.features],
            "cells": [_cell(*pairs[key]) if key in pairs else None for pairs in numbered],
        }
        for order, key in enumerate(sorted({key for pairs in by_series for key in pairs}))
    ]


def _cell(number: int, pair: PairData) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "id": number,
        "outcome": outcome_of(pair),
        "ended": pair.state in ENDED,
        "messages": pair.messages,
        "steps": pair.steps,
        "cost": round(pair.cost, 6),
        "seconds": round(pair.duration_seconds, 1),
        "unsound": pair.unsound_text,
        "suspicious": len(pair.suspicious),
    }
    if reason := failure_reason(pair):
        cell["reason"] = reason
    return cell


def pair_detail(pair: PairData) -> tuple[dict[str, Any], Coordination | None]:
    """All of one attempt, as JSON for the page; and what was found in it where the agents came to an end."""
    files = PairFiles(pair)
    found = coordination(pair, files) if pair.state in ENDED else None
    # Times on the page are seconds since the first agent of the pair began.
    first = [entry for entries in files.trajectories.values() for entry in entries[:1]]
    stamps = [step.timestamp for step in first if step.timestamp]
    start = (pair.result.started_at if pair.result else "") or min(stamps, default="")
    detail = {
        "outcome": outcome_of(pair),
        "error": pair.error,
        "reason": failure_reason(pair),
        "seconds": round(pair.duration_seconds, 1),
        "failures": [asdict(failure) for failure in failed_tests(pair)],
        "unsound": pair.unsound_text,
        "suspicious": [cut(text, 500) for text in pair.suspicious_texts],
        "problems": [*pair.problems, *(found.problems if found else ())],
        "agents": [_agent(pair, agent_id) for agent_id in pair.agent_ids],
        "entries": _entries(pair, files, start),
        "messages": [
            {
                "number": message.sequence,
                "from": message.sender,
                "to": message.recipient,
                "text": cut(message.text),
                "t": seconds_between(start, message.timestamp) or 0.0,
                "read": seconds_between(start, message.delivered_at),
            }
            for message in files.conversation.messages
        ],
        "diffs": side_by_side(files.works, pair.conflicting_files),
        "merged": _merged(pair),
        "tests": list(_tests(pair)),
        "team": _team(pair),
        "opinion": _opinion(pair),
        "files": list(_files(pair)),
        "coordination": asdict(found) if found else None,
    }
    return detail, found


def _opinion(pair: PairData) -> dict[str, Any] | None:
    """Return judge.json; None without one."""
    judgement = records.read(pair.paths.judgement, Judgement)
    return records.to_object(judgement) if judgement else None


def _merged(pair: PairData) -> dict[str, Any] | None:
    """Return the evaluation of the merge without its test runs; None without a verdict."""
    if pair.merged is None:
        return None
    content: dict[str, Any] = msgspec.to_builtins(pair.merged, str_keys=True)
    del content["features"]
    return content


def cut(text: str, most: int = MAX_CHARACTERS) -> str:
    """Beginning and end of a long text: errors stand at the end."""
    return head_and_tail(
        text, most, "\n[… {cut} characters left out; the whole is in the logs …]\n"
    )


def _entries(pair: PairData, files: PairFiles, start: str) -> list[dict[str, Any]]:
    """Of all agents in time; sending a message is shown by the message itself."""
    told = {(one.sender, one.sender_step) for one in files.conversation.messages}
    found = []
    for lane, agent_id in enumerate(pair.agent_ids):
        last = 0.0
        for entry in map(step_object, files.trajectories[agent_id]):
            # An entry without a time of its own stands after the one before it.
            seconds = seconds_between(start, entry.get("timestamp"))
            last = last if seconds is None else seconds
            if entry.get("action") == "send_message" and (agent_id, entry.get("step")) in told:
                continue
            kept = {name: _cut_value(entry[name]) for name in _OF_ENTRIES if entry.get(name)}
            args = {name: _cut_value(value) for name, value in entry["args"].items()}
            found.append({"lane": lane, "t": last, **kept, "args": args})
    return sorted(found, key=lambda entry: entry["t"])


def _cut_value(value: object) -> object:
    return cut(value) if isinstance(value, str) else value


def _agent(pair: PairData, agent_id: str) -> dict[str, Any]:
    record: dict[str, Any] = {"id": agent_id, "patch_bytes": len(pair.patch(agent_id) or b"")}
    for known in (agent for agent in pair.agents if agent.agent_id == agent_id):
        record |= {**vars(known), "record": None, "error": known.record.error or None}
    return record


def _tests(pair: PairData) -> Iterator[dict[str, Any]]:
    """One test run a line: whose patch, which feature's tests, what came out."""
    outputs = pair.test_outputs()
    for subject in (
        pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged", "lead")
    ):
        totals = pair.evaluation.totals_of(subject) if pair.evaluation else None
        for feature, run in (totals.features if totals else {}).items():
            output = cut(outputs.get(f"{subject}-f{feature}", ""))
            yield {
                **msgspec.to_builtins(run),
                "subject": subject,
                "feature": str(feature),
                "output": output,
            }


def _team(pair: PairData) -> dict[str, Any] | None:
    """What became of the tools of setting team; None in other settings."""
    if pair.result is None or not pair.result.team_features:
        return None
    record = records.read(pair.paths.tasks, TaskListRecord)
    tasks = [msgspec.structs.asdict(task) for task in record.tasks[:_MAX_TASKS]] if record else []
    keys = ("id", "title", "owner", "state", "note")
    return {
        "features": pair.result.team_features,
        "metrics": msgspec.to_builtins(pair.result.metrics) or {},
        "integrated_by_lead": pair.integrated_by_lead,
        "tasks": [{key: _cut_value(task.get(key)) for key in keys} for task in tasks],
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
            record["text"] = cut(
                (read_bytes(path) or b"").decode("utf-8", "replace"), MAX_FILE_CHARACTERS
            )
        yield record


def side_by_side(works: Sequence[AgentPatch], conflicting: Collection[str]) -> list[dict[str, Any]]:
    """A record for each file that anyone changed; `sides` has an entry a patch, None where it leaves the file alone.

    Hunks are marked whose changes overlap in the base, as conflicting in a file that git could not
    merge: git's own conflict is computed on the whole file, this says where to look.
    """
    paths = dict.fromkeys(file.path for work in works for file in work.files)
    records = [_file(path, works, path in conflicting) for path in paths]
    return sorted(
        records, key=lambda one: (not one["conflict"], not one["overlap"], not one["shared"])
    )


def _file(path: str, works: Sequence[AgentPatch], conflict: bool) -> dict[str, Any]:
    touched = [next((file for file in work.files if file.path == path), None) for work in works]
    present = [file for file in touched if file is not None]
    mark = "conflict" if conflict else "overlap"
    sides = [
        file and _side(file, [one for one in present if one is not file], mark) for file in touched
    ]
    return {
        "path": path,
        "shared": len(present) > 1,
        "conflict": conflict,
        "overlap": any(hunk["mark"] for side in sides if side for hunk in side["hunks"]),
        "sides": sides,
    }


def _side(file: ChangedFile, others: Sequence[ChangedFile], mark: str) -> dict[str, Any]:
    met = {change for other in others for change in meeting_changes(file, other)}
    left = MAX_LINES_OF_A_FILE
    hunks = []
    for hunk in file.hunks:
        lines = hunk.lines[: max(0, left)]
        left -= len(hunk.lines)
        more = {"lines": lines, "cut": len(hunk.lines) - len(lines)}
        shown = mark if met.intersection(hunk.changes) else ""
        hunks.append({"start": hunk.old_start, "heading": hunk.heading, "mark": shown, **more})
    changed = sum(len(change.lines) for change in file.changes)
    return {
        "new": file.old_path is None,
        "binary": file.is_binary,
        "lines": changed,
        "hunks": hunks,
    }
