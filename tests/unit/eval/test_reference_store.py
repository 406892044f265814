"""The cache of references, and their exchange with another machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cooperbench.errors import UserError
from cooperbench.eval.conditions import Conditions
from cooperbench.eval.reference_store import ReferenceStore, export_references
from tests.support.eval.scripted_backend import DIGEST, ReferenceLab, pytest_output

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.records.reference import ReferenceRecord


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReferenceLab:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return ReferenceLab(tmp_path, lambda _: pytest_output(test_a=True, test_b=True))


@pytest.fixture
def reference(lab: ReferenceLab) -> ReferenceRecord:
    with lab.process() as references:
        return references.get(lab.task.feature(1))


def test_flaky_tests_stay_known_in_the_same_image(
    lab: ReferenceLab, reference: ReferenceRecord
) -> None:
    store = ReferenceStore()
    store.save(replace(reference, flaky_tests=["a"]))
    with_network = store.save(replace(reference, network="public", flaky_tests=["b"]))
    assert with_network.flaky_tests == ["a", "b"]
    loaded = store.load(lab.task.feature(1), DIGEST, Conditions("public", installed=True))
    assert loaded is not None
    assert loaded.flaky_tests == ["a", "b"]
    elsewhere = store.save(replace(reference, image_digest="sha256:other"))
    assert elsewhere.flaky_tests == []


def test_references_of_other_tests_or_runners_are_not_used(
    lab: ReferenceLab, reference: ReferenceRecord
) -> None:
    feature = lab.task.feature(1)
    assert [known.time for known in ReferenceStore().about(feature)] == [reference.time]
    lab.task.runner_script.write_text("another\n")
    assert list(ReferenceStore().about(feature)) == []
    assert ReferenceStore().unknown(lab.task.pairs) == 3


def test_a_damaged_file_is_ignored(lab: ReferenceLab, reference: ReferenceRecord) -> None:
    (path,) = ReferenceStore().folder.iterdir()
    path.write_text("{")
    assert ReferenceStore().known([lab.task]) == []


def test_references_travel_as_one_file(
    lab: ReferenceLab, reference: ReferenceRecord, tmp_path: Path
) -> None:
    content = json.loads(json.dumps(export_references([reference])))
    elsewhere = ReferenceStore(tmp_path / "elsewhere")
    assert elsewhere.add(content) == 1
    assert [known.time for known in elsewhere.known([lab.task])] == [reference.time]
    content["references"][0]["schema"] = "cooperbench.reference/1"
    assert elsewhere.add(content) == 0, "older ones are left out"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "not a file of references"),
        ({"schema": "cooperbench.references/8", "references": [{"schema": "cooperbench.reference/8"}]},
         "damaged"),
    ],
)  # fmt: skip
def test_other_files_are_refused(lab: ReferenceLab, content: object, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        ReferenceStore().add(content)


def test_a_reference_cannot_choose_where_it_is_written(
    lab: ReferenceLab, reference: ReferenceRecord
) -> None:
    store = ReferenceStore()
    for question in ("../../outside", "/outside", "*", ""):
        content = export_references([replace(reference, question=question)])
        with pytest.raises(UserError, match="its question is not a hash"):
            store.add(content)
    cache = store.folder.parent
    assert not list(cache.parent.rglob("*outside*"))
