"""The JSON Schema describes what is written, and the documentation shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cooperbench import records
from cooperbench.records.docs import make_page
from cooperbench.records.files import Record
from cooperbench.records.schema import RECORDS, json_schema

RUNS = Path(__file__).parent / "runs/logs"
DOCS = Path(__file__).parents[3] / "docs/files.md"
COMPLETE = [path for path in sorted(RUNS.rglob("*.json")) if '"error"' not in path.read_text()[:99]]


@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.relative_to(RUNS).as_posix())
def test_what_is_written_is_valid(path: Path) -> None:
    kind: type[Record] = RECORDS[path.stem]
    record = records.read(path, kind)
    assert record is not None
    schema = json_schema(path.stem)
    Draft202012Validator(schema).validate(records.to_object(record))


def test_another_schema_or_type_is_not_valid() -> None:
    validator = Draft202012Validator(json_schema("jobs"))
    jobs = {"schema": "cooperbench.jobs/1", "engine": "slurm", "jobs": {"a.0": ["coop x f1_f2"]}}
    assert validator.is_valid(jobs)
    assert not validator.is_valid(jobs | {"schema": "cooperbench.jobs/2"})
    assert not validator.is_valid(jobs | {"jobs": ["a.0"]})
    assert not validator.is_valid({"schema": "cooperbench.jobs/1", "engine": "slurm"})


@pytest.mark.parametrize("name", RECORDS)
def test_schemas_are_valid_themselves(name: str) -> None:
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["const"] == RECORDS[name].SCHEMA
    assert schema["description"]


def test_the_documentation_is_current() -> None:
    assert DOCS.read_text() == make_page(), (
        "run: python -m cooperbench.records.docs > docs/files.md"
    )


def test_fields_are_described_under_their_keys() -> None:
    schema = json_schema("conversation")
    message = schema["$defs"]["ConversationMessage"]["properties"]
    assert {"from", "to", "message"} <= set(message)
    assert message["delivered_at"]["description"] == "None if the recipient never saw it."
    assert "unreadable" not in schema["properties"]
