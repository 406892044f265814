"""What a task of a remote evaluation sends back, and taking it in: checked, then written like any other verdict.

A result names its entry and its pair, and its verdict carries the key of everything that went into it. All three must
be those of what lies on disk here and now; a result of anything else is refused, whoever sent it.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.eval.batch.entry import identity
from cooperbench.eval.evaluator import Evaluation, write_evaluation
from cooperbench.eval.record import SCHEMA as EVALUATION_SCHEMA
from cooperbench.eval.record import evaluation_key, read_patches
from cooperbench.eval.reference import ReferenceStore
from cooperbench.models import seats_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.eval.batch.entry import Entry
    from cooperbench.models import EvalNetwork, Pair, Setting
    from cooperbench.storage import ExperimentPaths, PairPaths

SCHEMA = "cooperbench.remote-result/1"
_LARGEST_BYTES = 400_000_000


class BadResult(InfraError):
    """What came back is not the result of what was asked."""


def pack_result(
    entry_id: str,
    pair: Pair,
    setting: Setting,
    paths: PairPaths,
    record: Mapping[str, Any],
    references: Mapping[str, Any],
) -> bytes:
    """From the files that an evaluator has written, with the references that it was made by."""
    subjects = _subjects(pair, setting)
    outputs = [
        [subject, number, _text(output.read_bytes())]
        for subject in subjects
        for number in pair.feature_ids
        if (output := paths.test_output(subject, number)).is_file()
    ]
    merged = paths.merged_patch.read_bytes() if paths.merged_patch.is_file() else b""
    content = {
        "schema": SCHEMA,
        "entry": entry_id,
        **identity(pair, setting),
        "evaluation": record,
        "merged_patch": _text(merged),
        "outputs": outputs,
        "references": references,
    }
    return zlib.compress(json.dumps(content).encode(), 6)


class Result:
    """One result, read and known to be of its entry."""

    def __init__(self, entry: Entry, packed: bytes) -> None:
        self._entry = entry
        try:
            self._content = _unpacked(packed)
            self.record: dict[str, Any] = dict(self._content["evaluation"])
            self._outputs = {
                (str(subject), int(number)): _data(text) for subject, number, text in self._content["outputs"]
            }
            self._merged = _data(self._content["merged_patch"])
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise BadResult(f"the result of {entry.pair.label} cannot be read: {error}") from error
        self._check_identity()

    @property
    def is_verdict(self) -> bool:
        """Or a reason why there can be none."""
        return self.record.get("status") in ("completed", "no_reference")

    @property
    def error(self) -> CooperBenchError:
        """What it says where it is no verdict."""
        kind = InfraError if self.record.get("infrastructure", True) else UserError
        return kind(str(self.record.get("error")))

    def take_in(
        self, paths: ExperimentPaths, timeout_seconds: int, eval_network: EvalNetwork
    ) -> dict[str, Any]:
        """Write it beside the pair; the record that now is eval.json."""
        entry, place = self._entry, paths.pair(self._entry.pair, self._entry.setting)
        patches = read_patches(place, entry.pair, entry.setting)
        digest = str(self.record.get("image_digest", ""))
        key = evaluation_key(entry.pair, patches, digest, timeout_seconds, eval_network)
        if self.record.get("key") != key:
            raise BadResult(f"the result of {entry.pair.label} is of other patches or tests than those here")
        outputs = {name: data.decode("utf-8", "surrogateescape") for name, data in self._outputs.items()}
        ReferenceStore().add(self._content["references"])
        write_evaluation(place, Evaluation(self.record, self._merged, outputs))
        return self.record

    def _check_identity(self) -> None:
        entry, content = self._entry, self._content
        expected = {"schema": SCHEMA, "entry": entry.entry_id, **identity(entry.pair, entry.setting)}
        verdict = {"schema": EVALUATION_SCHEMA, **identity(entry.pair, entry.setting)}
        wrong = [name for name, value in expected.items() if content.get(name) != value]
        wrong += [name for name, value in verdict.items() if self.record.get(name) != value]
        subjects = _subjects(entry.pair, entry.setting)
        wrong += [
            "outputs"
            for subject, number in self._outputs
            if subject not in subjects or number not in entry.pair.feature_ids
        ]
        if wrong:
            raise BadResult(f"the result of {entry.pair.label} is of something else: its {wrong[0]} differs")


def _subjects(pair: Pair, setting: Setting) -> tuple[str, ...]:
    return (*(seat.agent_id for seat in seats_of(pair, setting)), "merged")


def _unpacked(packed: bytes) -> dict[str, Any]:
    # What tests print decides about the size; what unpacks to more than this is no result of ours.
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, _LARGEST_BYTES)
    if not unpacker.eof:
        raise ValueError("it is not whole, or too large")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError("no JSON object")
    return content


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _data(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
