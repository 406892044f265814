"""The cache of references, shared by all runs on this machine, and their exchange as one file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from cooperbench.errors import UserError
from cooperbench.eval.conditions import Conditions
from cooperbench.models import Feature, Pair, Task
from cooperbench.records import files
from cooperbench.records.files import JsonObject
from cooperbench.records.reference import ReferenceRecord, ReferencesFile
from cooperbench.sandbox.contract import NetworkPolicy
from cooperbench.settings import default_cache_dir
from cooperbench.storage import read_bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ReferenceStore:
    """References on disk, one file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_cache_dir() / "references"

    def load(
        self, feature: Feature, image_digest: str, conditions: Conditions
    ) -> ReferenceRecord | None:
        """Return the reference of a feature in an image under some conditions."""
        return self._read(self.folder / file_name(key_of(feature), image_digest, conditions))

    def save(self, reference: ReferenceRecord) -> ReferenceRecord:
        """Write a reference to the cache; return it with the flaky tests that were known before.

        A test that was seen both passing and failing stays flaky, whoever saw it.
        """
        flaky_tests = set(reference.flaky_tests)
        for earlier in self._about(reference.question):
            if earlier.image_digest == reference.image_digest:
                flaky_tests.update(earlier.flaky_tests)
        reference = replace(reference, flaky_tests=sorted(flaky_tests))
        conditions = conditions_of(reference)
        name = file_name(reference.question, reference.image_digest, conditions)
        files.write(self.folder / name, reference)
        return reference

    def about(self, feature: Feature) -> Iterator[ReferenceRecord]:
        """Return all references of a feature, in any image and under any conditions."""
        return self._about(key_of(feature))

    def _about(self, question: str) -> Iterator[ReferenceRecord]:
        for path in sorted(self.folder.glob(f"{question[:32]}-*.json")):
            reference = self._read(path)
            if reference:
                yield reference

    def _read(self, path: Path) -> ReferenceRecord | None:
        """Return the reference in a file; None if it is damaged or of another version."""
        data = read_bytes(path)
        if data is None:
            return None
        try:
            reference = msgspec.json.decode(data, type=ReferenceRecord)
        except msgspec.MsgspecError:
            return None
        return reference if reference.is_current else None

    def known(self, owners: Iterable[Task | Pair]) -> list[ReferenceRecord]:
        """Return all references of the features of tasks or pairs."""
        references: list[ReferenceRecord] = []
        for owner in owners:
            for feature in owner.features:
                references += self.about(feature)
        return references

    def unsound_of(self, pair: Pair) -> list[int]:
        """Return the features of a pair whose tests pass without them, as `validate` found."""
        return [feature.feature_id for feature in pair.features if self._passes_without(feature)]

    def _passes_without(self, feature: Feature) -> bool:
        return any(reference.base_passes for reference in self.about(feature))

    def unknown(self, pairs: Iterable[Pair]) -> int:
        """Return how many features of these pairs have no reference that passed."""
        unknown = 0
        for feature in features_of(pairs):
            if not any(reference.golden.success for reference in self.about(feature)):
                unknown += 1
        return unknown

    def add(self, content: object) -> int:
        """Save the references that `export_references` returned, also on another machine.

        Returns:
            The number of references of this version.
        """
        if not isinstance(content, dict) or content.get("schema") != ReferencesFile.SCHEMA:
            raise UserError(f"not a file of references (its schema is not {ReferencesFile.SCHEMA})")
        current = [
            item for item in content["references"] if item["schema"] == ReferenceRecord.SCHEMA
        ]
        try:
            references = msgspec.convert(current, list[ReferenceRecord])
        except msgspec.MsgspecError as error:
            raise UserError(f"a reference in the file is damaged: {error}") from error
        for reference in references:
            # It becomes part of a file's name.
            if not _SHA256.fullmatch(reference.question):
                raise UserError("a reference in the file is damaged: its question is not a hash")
        for reference in references:
            self.save(reference)
        return len(references)


def export_references(references: Iterable[ReferenceRecord]) -> JsonObject:
    """Return references as the content of one JSON file."""
    return files.to_object(ReferencesFile(references=list(references)))


def sound_pairs(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return the pairs without an unsound feature."""
    store = ReferenceStore()
    return tuple(pair for pair in pairs if not store.unsound_of(pair))


def conditions_of(reference: ReferenceRecord) -> Conditions:
    """Return the conditions under which a reference was recorded."""
    return Conditions(cast("NetworkPolicy | None", reference.network), reference.installed)


def key_of(feature: Feature) -> str:
    """Return what a reference depends on besides the image and the conditions, as a hash."""
    digest = hashlib.sha256(ReferenceRecord.SCHEMA.encode())
    for path in (feature.task.runner_script, feature.tests, feature.patch):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def file_name(key: str, image_digest: str, conditions: Conditions) -> str:
    """Return the name of a reference's file."""
    policy = hashlib.sha256(f"{image_digest} {conditions.label}".encode()).hexdigest()
    return f"{key[:32]}-{policy[:16]}.json"


def features_of(pairs: Iterable[Pair]) -> list[Feature]:
    """Return the features of all pairs, each once."""
    features: dict[Feature, None] = {}
    for pair in pairs:
        features |= dict.fromkeys(pair.features)
    return list(features)
