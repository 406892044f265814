"""Which Batch job an experiment has under way, in its folder: written before the job is made, removed after its end.

So a harness that was killed at any moment finds the job again by the same command. Nothing here talks to the cloud.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.eval.batch.entry import identity
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cooperbench.eval.batch.entry import Entry
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.batch/1"
FILE = "batch.json"
TOP_FOLDER = "cooperbench"
"""Of everything that we put into the bucket."""
_LONGEST_SLUG = 24


@dataclass(frozen=True)
class JobRecord:
    """One job, and whose inputs and results are in which folder of the bucket."""

    project: str
    region: str
    bucket: str
    job: str
    folder: str
    created_at: str
    tasks: tuple[dict[str, Any], ...]
    """By index in the job: the entry, and which pair it is for people who read this."""

    @property
    def entry_ids(self) -> tuple[str, ...]:
        return tuple(task["entry"] for task in self.tasks)


def new_record(run_name: str, project: str, region: str, bucket: str, entries: Sequence[Entry]) -> JobRecord:
    """A job's name says which run it is of, and is nobody else's."""
    content = hashlib.sha256("".join(entry.entry_id for entry in entries).encode()).hexdigest()
    job = f"cb-{slug(run_name)}-{content[:8]}-{secrets.token_hex(4)}"
    tasks = tuple({"entry": entry.entry_id, **identity(entry.pair, entry.setting)} for entry in entries)
    return JobRecord(project, region, bucket, job, f"{TOP_FOLDER}/{job}", utc_now(), tasks)


def slug(text: str) -> str:
    """For names and labels: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:_LONGEST_SLUG].strip("-") or "run"


def record_path(paths: ExperimentPaths) -> Path:
    return paths.root / FILE


def save_record(paths: ExperimentPaths, record: JobRecord) -> None:
    write_json(record_path(paths), {"schema": SCHEMA, **asdict(record)})


def load_record(paths: ExperimentPaths) -> JobRecord | None:
    """None where there is none, or none that this version understands."""
    content = read_json(record_path(paths))
    if content is None or content.pop("schema", None) != SCHEMA:
        return None
    try:
        tasks = tuple({**task, "entry": str(task["entry"])} for task in content.pop("tasks"))
        return JobRecord(tasks=tasks, **{name: str(value) for name, value in content.items()})
    except (KeyError, TypeError):
        return None


def forget_record(paths: ExperimentPaths) -> None:
    record_path(paths).unlink(missing_ok=True)
