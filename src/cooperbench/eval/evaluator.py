"""Evaluates pairs that lie on disk, and puts eval.json and what belongs to it beside them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cooperbench.errors import Interrupted
from cooperbench.eval.backends.base import SandboxOptions
from cooperbench.eval.judge import evaluate_pair
from cooperbench.eval.record import SCHEMA, read_patches
from cooperbench.retry import with_retries
from cooperbench.storage import error_record, remove_tree, write_bytes, write_json, write_text

if TYPE_CHECKING:
    from cooperbench.eval.backends.guard import SandboxGuard
    from cooperbench.eval.backends.prepared import PreparedImages
    from cooperbench.eval.judge import Evaluation
    from cooperbench.models import Pair, Setting
    from cooperbench.storage import ExperimentPaths, PairPaths

SPARE_SECONDS = 300
"""How much longer than the tests a sandbox may live."""


class Evaluator:
    """For one experiment and one backend; `evaluate` may be called from several threads."""

    def __init__(
        self, paths: ExperimentPaths, guard: SandboxGuard, images: PreparedImages, test_timeout_seconds: int
    ) -> None:
        self._paths = paths
        self._guard = guard
        self._images = images
        self._timeout_seconds = test_timeout_seconds

    def evaluate(self, pair: Pair, setting: Setting) -> dict[str, Any]:
        """The record that now is eval.json; `status` tells whether it is a verdict or an error of ours."""
        paths = self._paths.pair(pair, setting)
        try:
            evaluation = with_retries(lambda _: self._judge(pair, setting, paths), self._guard.stop)
        except Interrupted:
            raise
        except Exception as error:
            if self._guard.stop.is_set():
                raise Interrupted("stopped") from error
            return write_failure(self._paths, pair, setting, error)
        write_evaluation(paths, evaluation)
        return evaluation.record

    def _judge(self, pair: Pair, setting: Setting, paths: PairPaths) -> Evaluation:
        image = self._images.get(pair.task)
        labels = {"run": self._paths.run_name, "pair": pair.label}
        options = SandboxOptions("evaluation", "none", labels)
        lifetime = self._timeout_seconds + SPARE_SECONDS
        return evaluate_pair(
            pair,
            setting,
            read_patches(paths, pair, setting),
            image,
            partial(self._guard.open, image.reference, timeout_seconds=lifetime, options=options),
            self._timeout_seconds,
            partial(self._guard.expect, image.reference, timeout_seconds=lifetime, options=options),
        )


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


def write_failure(paths: ExperimentPaths, pair: Pair, setting: Setting, error: Exception) -> dict[str, Any]:
    """eval.json for a pair that could not be judged; it is judged again next time."""
    record = {"schema": SCHEMA} | error_record(paths, pair, setting, error)
    write_json(paths.pair(pair, setting).evaluation, record)
    return record
