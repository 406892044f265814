"""docs/files.md: every record as tables of its fields.

Write it anew after a change: `python -m cooperbench.records.docs > docs/files.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from cooperbench.records import JsonObject
from cooperbench.records.schema import RECORDS, json_schema

_FILES = {
    "config": "logs/RUN/config.json",
    "result": "logs/RUN/SETTING/REPO/TASK/f1_f2/result.json",
    "eval": "logs/RUN/SETTING/REPO/TASK/f1_f2/eval.json",
    "summary": "logs/RUN/summary.json",
    "conversation": "logs/RUN/SETTING/REPO/TASK/f1_f2/conversation.json",
    "trajectory": "logs/RUN/SETTING/REPO/TASK/f1_f2/agent1/trajectory.json",
    "tasks": "logs/RUN/team/REPO/TASK/f1_f2/tasks.json",
    "task_log": "logs/RUN/team/REPO/TASK/f1_f2/task_log.json",
    "workspace": "logs/RUN/SETTING/REPO/TASK/f1_f2/workspace.json",
    "jobs": "logs/RUN/jobs.json and logs/RUN/batch.json",
    "study": "logs/STUDY/study.json",
    "plan": "logs/STUDY/plan.json",
    "forks": "logs/FORKS/forks.json",
    "judge": "logs/RUN/SETTING/REPO/TASK/f1_f2/judge.json",
    "import": "logs/RUN/import.json",
    "recorded": "logs/RUN/SETTING/REPO/TASK/f1_f2/recorded.json",
    "reference": "~/.cache/cooperbench/references/*.json",
    "references": "the file of `cooperbench validate --export FILE`",
}
_INTRODUCTION = """\
# Files

Every JSON file that CooperBench writes, field by field. This page is generated from the types in
`cooperbench.records`. `cooperbench schema` lists them, and `cooperbench schema result` prints the
JSON Schema of result.json.

- `schema` names the format and its version. Newer versions of CooperBench read older files.
- Fields marked *optional* are not in every file. Readers should ignore fields they do not know.
- A pair or an evaluation that ended in an error has a shorter result.json or eval.json: `schema`,
  `status` (`error`), `run_name`, `repo`, `task_id`, `features`, `setting`, `error`,
  `infrastructure`, `ended_at` and `version`.
- Times are UTC in ISO 8601. Costs are US dollars.
- While an agent works, its steps are lines of `agent1/steps.jsonl`; at the end they are moved to
  trajectory.json.

To read these files in Python:

```python
from pathlib import Path
from cooperbench import records
from cooperbench.records.result import PairResult

result = records.read(Path("logs/my-run/coop/my_task/1/f1_f2/result.json"), PairResult)
if result is not None:  # None: there is no such file, or it is not JSON
    print(result.status, result.cost, result.agents["agent1"].steps)
```
"""


def make_page() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    for name, record in RECORDS.items():
        lines += [f"## {name}", "", f"`{_FILES[name]}`", "", f"Schema `{record.SCHEMA}`.", ""]
        lines += _record_lines(name)
    return "\n".join(lines).rstrip() + "\n"


def _record_lines(name: str) -> Iterator[str]:
    schema = json_schema(name)
    yield from _table_lines(schema)
    for struct_name, definition in sorted(schema["$defs"].items()):
        yield f"### {name}: {struct_name}"
        yield ""
        yield from _table_lines(definition)


def _table_lines(definition: JsonObject) -> Iterator[str]:
    yield definition["description"]
    yield ""
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    required = definition.get("required", [])
    for field, field_schema in definition["properties"].items():
        optional = "" if field in required else "*optional.* "
        meaning = optional + field_schema.get("description", "")
        yield f"| `{field}` | {_type_text(field_schema)} | {_escape(meaning.strip())} |"
    additional = definition.get("additionalProperties")
    if isinstance(additional, dict):
        yield f"| *any other name* | {_type_text(additional)} | |"
    elif additional:
        yield "| *any other name* | any | |"
    yield ""


def _type_text(schema: JsonObject) -> str:
    """Return a type for people, e.g. `list of integer`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(_type_text(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type_text(schema['items'])}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of {_type_text(values)}" if isinstance(values, dict) else "object"
    return str(schema.get("type", "any"))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(make_page())
