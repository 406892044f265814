"""Evaluates pairs that lie on disk, and puts eval.json and what belongs to it beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.errors import Interrupted
from cooperbench.eval.judge import evaluate_pair
from cooperbench.eval.record import SCHEMA, read_evaluation, read_patches
from cooperbench.retry import with_retries
from cooperbench.storage import error_record, remove_tree, write_bytes, write_json, write_text

if TYPE_CHECKING:
    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.judge import Evaluation
    from cooperbench.eval.reference import References, ReferenceStore
    from cooperbench.models import Pair, Setting
    from cooperbench.storage import ExperimentPaths, PairPaths


class Evaluator:
    """For one experiment and one backend; `evaluate` may be called from several threads."""

    def __init__(self, paths: ExperimentPaths, executor: TestExecutor, references: References) -> None:
        self._paths = paths
        self._executor = executor
        self._references = references

    def evaluate(self, pair: Pair, setting: Setting) -> dict[str, Any]:
        """The record that now is eval.json; `status` tells whether it is a verdict or an error of ours."""
        paths = self._paths.pair(pair, setting)

        def judge(attempt: int) -> Evaluation:  # noqa: ARG001  # each attempt is like the first
            patches = read_patches(paths, pair, setting)
            return evaluate_pair(pair, setting, patches, self._executor, self._references)

        try:
            evaluation = with_retries(judge, self._executor.stop)
        except Interrupted:
            raise
        except Exception as error:
            if self._executor.stop.is_set():
                raise Interrupted("stopped") from error
            return write_failure(self._paths, pair, setting, error)
        write_evaluation(paths, evaluation)
        return evaluation.record


def write_evaluation(paths: PairPaths, evaluation: Evaluation) -> None:
    """The verdict last: where it is, everything that it speaks of is there too."""
    remove_tree(paths.folder / "tests")
    for (subject, feature_id), output in evaluation.outputs.items():
        write_text(paths.test_output(subject, feature_id), output)
    if evaluation.merged_patch:
        write_bytes(paths.merged_patch, evaluation.merged_patch)
    else:
        paths.merged_patch.unlink(missing_ok=True)
    write_json(paths.evaluation, evaluation.record)


def mark_unsound(paths: PairPaths, pair: Pair, store: ReferenceStore) -> None:
    """What `validate` has found since stands in a verdict without judging again."""
    record, unsound = read_evaluation(paths), store.unsound_of(pair)
    if record is not None and record.get("unsound", []) != unsound:
        write_json(paths.evaluation, record | {"unsound": unsound})


def write_failure(paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception) -> dict[str, Any]:
    """eval.json for a pair that could not be judged; it is judged again next time."""
    record = {"schema": SCHEMA} | error_record(paths, pair, setting, error)
    write_json(paths.pair(pair, setting).evaluation, record)
    return record
