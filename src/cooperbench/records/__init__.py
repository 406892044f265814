"""Every JSON file that CooperBench writes under logs/, and the references in its cache, as a type.

Read and write them only through this package:

    from cooperbench import records
    from cooperbench.records.result import PairResult

    result = records.read(paths.result, PairResult)      # None if there is no readable file
    records.write(paths.result, result)                  # whole or not at all

| file               | type                                                                    |
| ------------------ | ----------------------------------------------------------------------- |
| config.json        | `config.RunRecord`                                                      |
| result.json        | `result.PairResult`; if the pair ended in an error, `result.ResultError` |
| eval.json          | `evaluation.Evaluation`; after an error, `evaluation.EvaluationError`   |
| summary.json       | `summary.Summary`                                                       |
| conversation.json  | `conversation.Conversation`                                             |
| trajectory.json    | `trajectory.Trajectory`; `read_trajectory` also reads a killed run      |
| steps.jsonl        | `trajectory.Step`, one a line, by `read_journal`                        |
| tasks.json         | `tasks.TaskListRecord`                                                  |
| task_log.json      | `tasks.TaskLog`                                                         |
| workspace.json     | `workspace.WorkspaceRecord`                                             |
| jobs.json          | `jobs.JobsRecord`                                                       |
| study.json         | `study.StudyRecord`                                                     |
| plan.json          | `plan.PlanRecord`                                                       |
| forks.json         | `forks.ForksRecord`                                                     |
| judge.json         | `judgement.Judgement`                                                   |
| import.json        | `imported.ImportRecord`, of an imported run                              |
| recorded.json      | `imported.RecordedVerdict`, of an imported run                           |
| references         | `reference.ReferenceRecord` in the cache, `reference.ReferencesFile`    |

Records are immutable; `msgspec.structs.replace` returns a changed copy. `read_or_problem` also says
why a file cannot be read. A value that is missing in a file or has the wrong type becomes None, 0
or empty, so reading raises nothing. `record.schema` is what the file says; compare it with
`record.SCHEMA` where another version matters. `write` always writes the current schema.

To change a file: add a field with a default, so that older files stay readable. If a field changes
its meaning, raise the version in SCHEMA and translate older content in `from_file`.
"""

from cooperbench.records.files import (
    JsonObject,
    Reading,
    Record,
    convert,
    decode,
    encode,
    from_object,
    read,
    read_or_problem,
    to_object,
    write,
)

__all__ = [
    "JsonObject",
    "Reading",
    "Record",
    "convert",
    "decode",
    "encode",
    "from_object",
    "read",
    "read_or_problem",
    "to_object",
    "write",
]
