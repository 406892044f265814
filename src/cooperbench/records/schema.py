"""JSON Schema of every record, for `cooperbench schema` and docs/files.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

import msgspec

from cooperbench.records.config import RunRecord
from cooperbench.records.conversation import Conversation
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.files import JsonObject, Record
from cooperbench.records.forks import ForksRecord
from cooperbench.records.imported import ImportRecord, RecordedVerdict
from cooperbench.records.jobs import JobsRecord
from cooperbench.records.judgement import Judgement
from cooperbench.records.plan import PlanRecord
from cooperbench.records.reference import ReferenceRecord, ReferencesFile
from cooperbench.records.result import PairResult
from cooperbench.records.study import StudyRecord
from cooperbench.records.summary import Summary
from cooperbench.records.tasks import TaskListRecord, TaskLog
from cooperbench.records.trajectory import Trajectory
from cooperbench.records.workspace import WorkspaceRecord

RECORDS: dict[str, type[Record]] = {
    "config": RunRecord,
    "result": PairResult,
    "eval": Evaluation,
    "summary": Summary,
    "conversation": Conversation,
    "trajectory": Trajectory,
    "tasks": TaskListRecord,
    "task_log": TaskLog,
    "workspace": WorkspaceRecord,
    "jobs": JobsRecord,
    "study": StudyRecord,
    "plan": PlanRecord,
    "forks": ForksRecord,
    "judge": Judgement,
    "import": ImportRecord,
    "recorded": RecordedVerdict,
    "reference": ReferenceRecord,
    "references": ReferencesFile,
}
"""Every record by the name of its file, without `.json`."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(name: str) -> JsonObject:
    """Return the JSON Schema of the files that a record of this name is written to.

    It describes complete files of this version. Reading accepts less: see `records.files`.
    """
    kind = RECORDS[name]
    content = msgspec.json.schema(kind)
    definitions: JsonObject = content.pop("$defs")
    structs = {struct.__name__: struct for struct in _structs_of(kind)}
    for struct_name, definition in definitions.items():
        definition["description"] = inspect.cleandoc(definition["description"])
        _describe_fields(definition, structs[struct_name])
        _describe_spread(definition, structs[struct_name])
        definition["required"] = _required_keys(definition, structs[struct_name])
    root = definitions.pop(kind.__name__)
    root["properties"]["schema"] = {
        "const": kind.SCHEMA,
        "description": "Name and version of the format.",
    }
    return {"$schema": _DIALECT, **root, "$defs": definitions}


def _structs_of(kind: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return a struct and all structs that its fields contain."""
    pending = [msgspec.inspect.type_info(kind)]
    structs: list[type[msgspec.Struct]] = []
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType) and info.cls not in structs:
            structs.append(info.cls)
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += info.types
        elif isinstance(info, msgspec.inspect.ListType):
            pending.append(info.item_type)
        elif isinstance(info, msgspec.inspect.DictType):
            pending.append(info.value_type)
    return structs


def _describe_fields(definition: JsonObject, struct: type[msgspec.Struct]) -> None:
    """Add the docstrings of the fields, and drop defaults, which only matter to readers."""
    descriptions = field_descriptions(struct)
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    if issubclass(struct, Record):
        for name in struct.NOT_WRITTEN:
            del definition["properties"][name]
    for key, property_schema in definition["properties"].items():
        property_schema.pop("default", None)
        if description := descriptions.get(names[key]):
            property_schema["description"] = description


def _describe_spread(definition: JsonObject, struct: type[msgspec.Struct]) -> None:
    """Describe a dict field whose entries are at the top level of the file."""
    name = SPREAD_FIELDS.get(struct.__name__)
    if name is None:
        return
    entries = definition["properties"].pop(name)
    definition["additionalProperties"] = entries.get("additionalProperties", True)


SPREAD_FIELDS = {"Evaluation": "agents", "RunRecord": "other", "Step": "extra"}
"""Fields whose entries are at the top level, by the name of the struct."""


def _required_keys(definition: JsonObject, struct: type[msgspec.Struct]) -> list[str]:
    """Return the keys that every file of this version has."""
    omitted: set[str] = set()
    if issubclass(struct, Record):
        omitted |= struct.OMITTED_IF_NONE
    for field in msgspec.structs.fields(struct):
        is_unset = field.default is msgspec.UNSET
        if is_unset or (struct.__struct_config__.omit_defaults and not field.required):
            omitted.add(field.encode_name)
    return [key for key in definition["properties"] if key not in omitted]


@cache
def field_descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field of a struct, base classes included."""
    descriptions: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, msgspec.Struct) and base.__module__.startswith(__package__):
            descriptions |= own_field_descriptions(base)
    return descriptions


def own_field_descriptions(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a class, without its base classes."""
    (class_definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(class_definition, ast.ClassDef)
    descriptions = {}
    field = None
    for statement in class_definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            field = statement.target.id
        elif field and isinstance(statement, ast.Expr):
            text = ast.literal_eval(statement.value)
            descriptions[field] = " ".join(text.split())
            field = None
    return descriptions
