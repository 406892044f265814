"""eval.json: when it stands, and when it has to be made again.

An evaluation is keyed by what went into it: patches, tests, golden patches, runner, image, network policy. While the
key stands it is not repeated.
The image enters as it was recorded: whether the image behind the same name has changed since is not looked up here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from cooperbench.models import seats_of
from cooperbench.storage import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cooperbench.models import EvalNetwork, Pair, Setting
    from cooperbench.storage import PairPaths

SCHEMA = "cooperbench.eval/1"
JUDGE = 5
"""Raised when the rules of judging change: then nothing judged before stands."""


def read_patches(paths: PairPaths, pair: Pair, setting: Setting) -> dict[str, bytes | None]:
    """What the agents handed in, by agent; None where there is no file."""
    return {seat.agent_id: _read(paths.agent(seat.agent_id).patch) for seat in seats_of(pair, setting)}


def evaluation_key(
    pair: Pair,
    patches: Mapping[str, bytes | None],
    image_digest: str,
    timeout_seconds: int,
    eval_network: EvalNetwork,
    canary: bool = True,
) -> str:
    return _hash(_key_parts(pair, patches, f"{image_digest} {timeout_seconds} {eval_network} {canary}"))


def _key_parts(pair: Pair, patches: Mapping[str, bytes | None], conditions: str) -> Iterable[bytes]:
    yield f"{JUDGE} {pair.label} {conditions}".encode()
    yield _read(pair.task.runner_script) or b""
    for feature in pair.features:
        yield _read(feature.tests) or b""
        yield _read(feature.patch) or b""
    for agent_id, patch in sorted(patches.items()):
        yield agent_id.encode()
        yield b"missing" if patch is None else b"patch:" + patch


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def is_evaluated(
    paths: PairPaths, pair: Pair, setting: Setting, eval_network: EvalNetwork, canary: bool = True
) -> bool:
    """Is there a verdict on just what lies here now? One that had no reference is tried again."""
    evaluation = read_evaluation(paths)
    if evaluation is None or evaluation.get("status") != "completed":
        return False
    key = evaluation_key(
        pair,
        read_patches(paths, pair, setting),
        str(evaluation.get("image_digest", "")),
        int(evaluation.get("test_timeout_seconds", 0)),
        eval_network,
        canary,
    )
    return bool(evaluation.get("key") == key)


def read_evaluation(paths: PairPaths) -> dict[str, Any] | None:
    return read_json(paths.evaluation)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
