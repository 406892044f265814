"""eval.json on disk: when it is still valid, and how it is written with the files next to it."""

from __future__ import annotations

import shutil

from cooperbench import records
from cooperbench.errors import Interrupted
from cooperbench.eval.evaluate import PairEvaluation, evaluate_pair
from cooperbench.eval.evaluation_key import EvaluationOptions, evaluation_key
from cooperbench.eval.reference_store import ReferenceStore
from cooperbench.eval.references import References
from cooperbench.models import EvalNetwork, Pair, Setting, patch_slots
from cooperbench.records.errors import make_error
from cooperbench.records.evaluation import Evaluation, EvaluationError
from cooperbench.storage import (
    ExperimentPaths,
    PairPaths,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
    write_text,
)


def read_patches(paths: PairPaths, pair: Pair, setting: Setting) -> dict[str, bytes | None]:
    """Return the patches of a pair by agent id, or that of a shared workspace; None without one."""
    return {
        slot.agent_id: read_bytes(paths.agent(slot.agent_id).patch)
        for slot in patch_slots(pair, setting)
    }


def is_evaluated(
    paths: PairPaths, pair: Pair, setting: Setting, eval_network: EvalNetwork, canary: bool = True
) -> bool:
    """Whether eval.json is a verdict on the current patches, tests and options.

    Pairs without a reference are evaluated again.
    """
    evaluation = records.read(paths.evaluation, Evaluation)
    if evaluation is None or not evaluation.is_completed:
        return False
    options = EvaluationOptions(evaluation.test_timeout_seconds, eval_network, canary)
    patches = read_patches(paths, pair, setting)
    return evaluation.key == evaluation_key(pair, patches, evaluation.image_digest, options)


def evaluate_and_write(
    paths: ExperimentPaths,
    pair: Pair,
    setting: Setting,
    references: References,
    *,
    canary: bool = True,
) -> Evaluation | EvaluationError:
    """Evaluate a pair and write eval.json, also if the evaluation ended in an error."""
    pair_paths = paths.pair(pair, setting)
    try:
        patches = read_patches(pair_paths, pair, setting)
        evaluation = evaluate_pair(pair, setting, patches, references, canary=canary)
    except Interrupted:
        raise
    except Exception as error:
        if references.tester.stop.is_set():
            raise Interrupted("stopped") from error
        return write_failure(paths, pair, setting, error)
    write_evaluation(pair_paths, evaluation)
    return evaluation.record


def write_evaluation(paths: PairPaths, evaluation: PairEvaluation) -> None:
    """Write an evaluation, eval.json last: if it exists, so do the files that it refers to."""
    shutil.rmtree(paths.folder / "tests", ignore_errors=True)
    for (subject, feature_id), output in evaluation.outputs.items():
        write_text(paths.test_output(subject, feature_id), output)
    if evaluation.merged_patch:
        write_bytes(paths.merged_patch, evaluation.merged_patch)
    else:
        paths.merged_patch.unlink(missing_ok=True)
    records.write(paths.evaluation, evaluation.record)


def write_failure(
    paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception
) -> EvaluationError:
    """Write eval.json of a pair whose evaluation ended in an error. It is tried again next time."""
    record = make_error(EvaluationError, paths, pair, setting, error)
    records.write(paths.pair(pair, setting).evaluation, record)
    return record


def mark_unsound(paths: PairPaths, pair: Pair, store: ReferenceStore) -> None:
    """Update the unsound features in eval.json, which `validate` may have found since."""
    # Not through `records`: everything else in the file stays as it is, also in older files.
    content = read_json(paths.evaluation)
    unsound = store.unsound_of(pair)
    if content is not None and content.get("unsound", []) != unsound:
        write_json(paths.evaluation, content | {"unsound": unsound})
