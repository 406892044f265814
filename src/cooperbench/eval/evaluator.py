"""The verdict on a pair, computed on the host: each patch alone, all of them merged, each test run in a fresh sandbox.

eval.json is keyed by what went into it, and while the key stands it is not made again. The image enters as it was
recorded: whether the image behind the same name has changed since is not looked up.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cooperbench._version import __version__
from cooperbench.diff import new_lines
from cooperbench.errors import Interrupted
from cooperbench.eval.protected_files import drop_protected_files
from cooperbench.eval.reference import References, ReferenceStore
from cooperbench.eval.test_logs import find_named_file
from cooperbench.eval.test_runs import TestRun, not_run
from cooperbench.eval.trees import Applied, TreeStore
from cooperbench.models import EvalNetwork, MergeResult, Pair, Setting, agent_slots
from cooperbench.storage import (
    ExperimentPaths,
    PairPaths,
    error_record,
    read_bytes,
    read_json,
    utc_now,
    write_bytes,
    write_json,
    write_text,
)

SCHEMA = "cooperbench.eval/1"
MAX_ORDER_MERGES = 400
"""Merges of two trees that the search for an order in which all merge may take: enough for every order of four."""
EVALUATION_VERSION = 10
"""Raised when the rules of judging change: then nothing judged before stands."""
_UNDECIDED = "the tests pass as well where they must fail (canary)"
_MAX_LINES = 50
_MAX_LINE_LENGTH = 200
# They take time linear in a line, which can have megabytes.
_SUSPICIOUS = {
    r"\.py$": (
        r"\bos\s*\.\s*(?:_exit|abort|kill|exec[lv]\w*)\b|\bsys\s*\.\s*(?:exit|settrace|setprofile|modules|meta_path)\b"
        r"|\batexit\b|\bSkipTest\b|\b(?:pytest|_pytest|unittest|conftest|pluggy)\b|\bgc\s*\.\s*get_objects\b"
        r"|\bsys\._getframe\b|\binspect\.(?:stack|currentframe)\b|__builtins__|\bbuiltins\b|\bctypes\b|/proc/"
        r"|\bdef __eq__\([^)]{0,99}\)[^:]{0,99}:\s*return True"
    ),
    r"\.[cm]?[jt]sx?$": (
        r"\bprocess\s*\.\s*(?:exit|reallyExit|abort|kill|exitCode)\b|\bprocess\.on\b|\bglobalThis\.(?:it|test|expect|describe)\b"
        r"|[\"'](?:node:test|vitest|jest|@jest/\w+|mocha|node:child_process|child_process)[\"']|/proc/"
    ),
    r"\.go$": r'\bos\.Exit\b|\bsyscall\.(?:Exit|Kill)\b|\bruntime\.Goexit\b|"testing"|\bflag\.Set\(|/proc/',
    r"\.rs$": r"\bprocess::(?:exit|abort)\b|\bpanic::(?:set_hook|catch_unwind)\b|\blibc::_?exit\b|/proc/",
}
"""Lines that reach for the test process: evidence for people, which decides nothing by itself."""
_Runs: TypeAlias = dict[int, TestRun]


@dataclass
class Evaluation:
    """eval.json, and the files that lie beside it."""

    record: dict[str, Any]
    merged_patch: bytes = b""
    outputs: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the tests printed, by subject and feature."""


def read_patches(paths: PairPaths, pair: Pair, setting: Setting) -> dict[str, bytes | None]:
    """What the agents handed in, by agent; None where there is no file."""
    return {
        slot.agent_id: read_bytes(paths.agent(slot.agent_id).patch)
        for slot in agent_slots(pair, setting)
    }


def evaluation_key(
    pair: Pair,
    patches: Mapping[str, bytes | None],
    image_digest: str,
    timeout_seconds: int,
    eval_network: EvalNetwork,
    canary: bool = True,
) -> str:
    conditions = f"{image_digest} {timeout_seconds} {eval_network} {canary}"
    # The same in whatever arm of a study, or setting of a run, the pair is.
    label = Pair(pair.task, pair.feature_ids).label
    parts = [
        f"{EVALUATION_VERSION} {label} {conditions}".encode(),
        read_bytes(pair.task.runner_script) or b"",
    ]
    for feature in pair.features:
        parts += [read_bytes(feature.tests) or b"", read_bytes(feature.patch) or b""]
    for agent_id, patch in sorted(patches.items()):
        parts += [agent_id.encode(), b"missing" if patch is None else b"patch:" + patch]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def is_evaluated(
    paths: PairPaths, pair: Pair, setting: Setting, eval_network: EvalNetwork, canary: bool = True
) -> bool:
    """Is there a verdict on just what lies here now? One that had no reference is tried again."""
    evaluation = read_json(paths.evaluation)
    if evaluation is None or evaluation.get("status") != "completed":
        return False
    image_digest = str(evaluation.get("image_digest", ""))
    timeout_seconds = int(evaluation.get("test_timeout_seconds", 0))
    patches = read_patches(paths, pair, setting)
    key = evaluation_key(pair, patches, image_digest, timeout_seconds, eval_network, canary)
    return bool(evaluation.get("key") == key)


def evaluate_pair(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    references: References,
    *,
    canary: bool = True,
) -> Evaluation:
    """The whole verdict. InfraErrors of sandboxes pass through: they are nobody's failure."""
    started_at, started = utc_now(), time.monotonic()
    tester, asked = references.tester, references.asked
    found = {feature.feature_id: references.get(feature) for feature in pair.features}
    evaluation = Evaluation({})
    failed = {
        str(number): one.golden.error or "unknown"
        for number, one in found.items()
        if not one.success
    }
    if failed:
        # The dataset's or the machine's fault: nothing can be said about the agents.
        number, reason = next(iter(failed.items()))
        outcome: dict[str, Any] = {
            "error": f"feature {number}: the golden patch does not pass: {reason}",
            "no_reference": failed,
        }
    else:
        with TreeStore(tester.base(pair.task)) as store:
            outcome = _judge(pair, setting, patches, store, references, evaluation, canary=canary)
    image, seconds = tester.image(pair.task), tester.timeout_seconds
    networks = {reference.network for reference in found.values()}
    evaluation.record = {
        "schema": SCHEMA,
        "status": "no_reference" if failed else "completed",
        "repo": pair.task.repo,
        "task_id": pair.task.task_id,
        "features": list(pair.feature_ids),
        "setting": setting,
        **outcome,
        "eval_network": asked,
        "network": "public" if "public" in networks else next(iter(networks)),
        "references": {
            str(number): {
                "success": one.success,
                "network": one.network,
                "installed": one.installed,
                "tests_passed": one.golden.tests_passed,
                "flaky_tests": one.flaky_tests,
                "error": one.golden.error,
            }
            for number, one in found.items()
        },
        "unsound": references.store.unsound_of(pair),
        "key": evaluation_key(pair, patches, image.digest, seconds, asked, canary),
        "image": image.ref,
        "image_digest": image.digest,
        "test_timeout_seconds": seconds,
        "started_at": started_at,
        "duration_seconds": round(time.monotonic() - started, 3),
        "version": __version__,
    }
    return evaluation


def _judge(
    pair: Pair,
    setting: Setting,
    patches: Mapping[str, bytes | None],
    store: TreeStore,
    references: References,
    evaluation: Evaluation,
    *,
    canary: bool,
) -> dict[str, Any]:
    """What eval.json says of the agents; puts what was tested and printed beside it."""
    side = references.tester.protected_files(pair.features, store)
    judged = {
        agent_id: drop_protected_files(patch, side, store) for agent_id, patch in patches.items()
    }
    merge = store.merge(list(judged.values()))
    if merge.patch and len(judged) > 1:
        # Two patches can make a test side together that neither has alone.
        both = drop_protected_files(merge.patch, side, store)
        merge = replace(merge, patch=both.patch, tree=both.tree)

    def test(
        subject: str, numbers: Sequence[int], work: Applied | MergeResult, reason: str
    ) -> _Runs:
        """Each feature's tests; where there is nothing to test, that is said of each."""
        if not work.patch:
            return {number: not_run(reason) for number in numbers}
        runs = {
            one: references.test(pair.task.feature(one), work.patch, work.tree) for one in numbers
        }
        evaluation.outputs |= {(subject, number): run.output for number, run in runs.items()}
        return runs

    slots = agent_slots(pair, setting)
    alone: dict[str, _Runs] = {}
    for slot in slots:
        work = judged[slot.agent_id]
        alone[slot.agent_id] = test(slot.agent_id, slot.feature_ids, work, work.error)
    # One agent's patch is its own merge: the same answers under the documented name.
    runs = alone[slots[0].agent_id]
    if setting != "solo":
        evaluation.merged_patch = merge.patch
        runs = test("merged", pair.feature_ids, merge, merge.detail or "nothing to merge")
    confirmation: dict[int, str] = {}
    if canary and all(run.success for tested in (*alone.values(), runs) for run in tested.values()):
        # Also alone: what a patch does to tests may depend on whether the other one is there.
        asked = [(number, merge.patch) for number in pair.feature_ids]
        asked += [
            (number, judged[slot.agent_id].patch) for slot in slots for number in slot.feature_ids
        ]
        for number, patch in dict.fromkeys(asked):
            if confirmation.get(number) != "suspicious":
                confirmation[number] = references.confirm(pair.task.feature(number), patch)
    for answer in {*confirmation.values()} - {"confirmed", "suspicious"}:
        references.tell(pair.task, "canary", f"successes cannot be confirmed by a canary: {answer}")
    undecided = {number for number, answer in confirmation.items() if answer == "suspicious"}
    for tested in (*alone.values(), runs):
        for number in undecided.intersection(tested):
            tested[number] = replace(tested[number], success=False, error=_UNDECIDED)
    agents = {
        agent_id: _totals(alone[agent_id])
        | {
            "apply_status": work.status,
            "dropped_files": [file._asdict() for file in work.dropped],
            "patch_sha256": hashlib.sha256(work.patch).hexdigest(),
        }
        for agent_id, work in judged.items()
    }
    merged = _merged_record(merge, runs)
    if merge.status == "conflict" and len(judged) > 2:
        # Whether the conflict is one of the order in which the patches are merged.
        order, complete = clean_order(store, [work.tree for work in judged.values()])
        names = None if order is None else [[*judged][at] for at in order]
        merged |= {"clean_order": names, "all_orders_tried": complete}
    # Recorded beside the verdicts, and part of none of them: the lead may have merged the members' work.
    lead: dict[str, Any] = {}
    if setting == "team":
        work = judged[slots[0].agent_id]
        others = [number for slot in slots[1:] for number in slot.feature_ids]
        totals = _totals(test("lead", others, work, work.error))
        lead = {
            "integrated_by_lead": agents[slots[0].agent_id]["success"] and totals["success"],
            "lead": totals,
        }
    individual = all(agent["success"] for agent in agents.values())
    overall = individual and merged["success"]
    suspicious: list[dict[str, Any]] = [
        {"reason": "test_process", "agent": agent_id, **line}
        for agent_id, work in judged.items()
        for line in suspicious_lines(work.patch)
    ]
    suspicious += [{"reason": "canary", "feature": number} for number in sorted(undecided)]
    return {
        **agents,
        "merged": merged,
        "individual_success": individual,
        "merge_success": merged["merge_status"] in ("clean", "identical"),
        "overall_success": overall,
        "overall_success_strict": overall and merged["strategy"] == "plain",
        **lead,
        "canary": {str(number): answer for number, answer in confirmation.items()}
        if canary
        else "off",
        "suspicious": suspicious,
    }


def clean_order(store: TreeStore, trees: Sequence[str]) -> tuple[tuple[int, ...] | None, bool]:
    """An order, as places in the sequence, in which trees merge plainly, and whether all were tried to find one."""
    tried = 0
    seen: set[tuple[str, frozenset[int]]] = set()
    open_ends: list[tuple[tuple[int, ...], str]] = [
        ((at,), trees[at]) for at in reversed(range(len(trees)))
    ]
    while open_ends:
        order, merged = open_ends.pop()
        left = [at for at in range(len(trees)) if at not in order]
        if not left:
            return order, True
        if (merged, frozenset(order)) in seen:
            continue
        seen.add((merged, frozenset(order)))
        tried += len(left)
        if tried > MAX_ORDER_MERGES:
            return None, False
        steps = store.merge_pairs([(merged, trees[at]) for at in left])
        longer = [
            ((*order, at), step.tree) for at, step in zip(left, steps, strict=True) if step.tree
        ]
        open_ends += longer[::-1]
    return None, True


def suspicious_lines(patch: bytes) -> list[dict[str, Any]]:
    """At most 50 of them, with path and line."""
    found: list[dict[str, Any]] = []
    for line in new_lines(patch):
        pattern = next(
            (one for ending, one in _SUSPICIOUS.items() if re.search(ending, line.path)), None
        )
        text = line.content.decode("utf-8", "replace") if line.added and pattern else ""
        if pattern and re.search(pattern, text) and len(found) < _MAX_LINES:
            found.append(
                {"path": line.path, "line": line.number, "text": text.strip()[:_MAX_LINE_LENGTH]}
            )
    return found


def _totals(runs: _Runs) -> dict[str, Any]:
    exit_codes = [run.exit_code for run in runs.values()]
    return {
        "tests_passed": sum(run.tests_passed for run in runs.values()),
        "tests_failed": sum(run.tests_failed for run in runs.values()),
        "tests_skipped": sum(run.tests_skipped for run in runs.values()),
        "success": all(run.success for run in runs.values()),
        "error": next((run.error for run in runs.values() if run.error), None),
        "exit_code": next((code for code in exit_codes if code), exit_codes[0]),
        "duration_seconds": round(sum(run.duration_seconds for run in runs.values()), 3),
        "features": {str(number): run.to_json() for number, run in runs.items()},
    }


def _merged_record(merge: MergeResult, runs: _Runs) -> dict[str, Any]:
    totals = _totals(runs)
    conflict = merge.status == "conflict"
    if conflict and merge.strategy == "none":
        totals["error"] = f"Merge conflict in {', '.join(merge.conflicting_files) or merge.detail}"
    if merge.strategy == "union":
        failed = (run for run in runs.values() if not run.success and not run.timed_out)
        files = (find_named_file(run.output, merge.conflicting_files) for run in failed)
        if file := next(filter(None, files), None):
            totals["error"] = f"union merge of {file}: {totals['error']}"
    return {
        **totals,
        "merge_conflict": conflict,
        "merge_status": merge.status,
        "strategy": merge.strategy,
        "conflicting_files": list(merge.conflicting_files),
        "detail": merge.detail,
    }


def evaluate_and_write(
    paths: ExperimentPaths,
    pair: Pair,
    setting: Setting,
    references: References,
    *,
    canary: bool = True,
) -> dict[str, Any]:
    """The record that now is eval.json; `status` tells whether it is a verdict or an error of ours."""
    place, stop = paths.pair(pair, setting), references.tester.stop
    try:
        patches = read_patches(place, pair, setting)
        evaluation = evaluate_pair(pair, setting, patches, references, canary=canary)
    except Interrupted:
        raise
    except Exception as error:
        if stop.is_set():
            raise Interrupted("stopped") from error
        return write_failure(paths, pair, setting, error)
    write_evaluation(place, evaluation)
    return evaluation.record


def write_evaluation(paths: PairPaths, evaluation: Evaluation) -> None:
    """The verdict last: where it is, everything that it speaks of is there too."""
    shutil.rmtree(paths.folder / "tests", ignore_errors=True)
    for (subject, feature_id), output in evaluation.outputs.items():
        write_text(paths.test_output(subject, feature_id), output)
    if evaluation.merged_patch:
        write_bytes(paths.merged_patch, evaluation.merged_patch)
    else:
        paths.merged_patch.unlink(missing_ok=True)
    write_json(paths.evaluation, evaluation.record)


def write_failure(
    paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception
) -> dict[str, Any]:
    """eval.json for a pair that could not be judged; it is judged again next time."""
    record = {"schema": SCHEMA} | error_record(paths, pair, setting, error)
    write_json(paths.pair(pair, setting).evaluation, record)
    return record


def mark_unsound(paths: PairPaths, pair: Pair, store: ReferenceStore) -> None:
    """What `validate` has found since stands in a verdict without judging again."""
    record, unsound = read_json(paths.evaluation), store.unsound_of(pair)
    if record is not None and record.get("unsound", []) != unsound:
        write_json(paths.evaluation, record | {"unsound": unsound})
