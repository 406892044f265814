"""The key of an evaluation: a hash of everything that the verdict depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from cooperbench.models import EvalNetwork, Pair
from cooperbench.storage import read_bytes

EVALUATION_VERSION = 11
"""Increased when the rules of evaluation change: earlier verdicts are not valid any more."""


class EvaluationOptions(NamedTuple):
    """Options of a run that a verdict depends on."""

    timeout_seconds: int
    eval_network: EvalNetwork
    canary: bool = True


def evaluation_key(
    pair: Pair,
    patches: Mapping[str, bytes | None],
    image_digest: str,
    options: EvaluationOptions,
) -> str:
    """Return the key of the evaluation of these patches, by agent id; None means no patch.

    The image digest is the recorded one. Whether the image behind the same name has changed is not
    checked.
    """
    # Without the condition of a study or the setting: the same patches have the same verdict.
    label = Pair(pair.task, pair.feature_ids).label
    conditions = f"{image_digest} {options.timeout_seconds} {options.eval_network} {options.canary}"
    if pair.assignment is not None:
        conditions += f" {pair.assignment}"
    parts = [
        f"{EVALUATION_VERSION} {label} {conditions}".encode(),
        read_bytes(pair.task.runner_script, follow_link=True) or b"",
    ]
    for feature in pair.features:
        parts.append(read_bytes(feature.tests, follow_link=True) or b"")
        parts.append(read_bytes(feature.patch, follow_link=True) or b"")
    for agent_id, patch in sorted(patches.items()):
        parts += [agent_id.encode(), b"missing" if patch is None else b"patch:" + patch]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
