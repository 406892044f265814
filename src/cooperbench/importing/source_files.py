"""The small files of an imported pair as types. `read_pair_files` runs in a worker process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from cooperbench.records import JsonObject, convert
from cooperbench.records.imported import RecordedTests, RecordedVerdict
from cooperbench.storage import read_regular_file

T = TypeVar("T", bound=msgspec.Struct)

_OWN_SCHEMA = "cooperbench."
_FEATURE = re.compile(r"feature[0-9]{1,18}")
_AGENT = re.compile(r"agent[0-9]{1,18}|solo")


class SourceAgent(msgspec.Struct, kw_only=True, frozen=True):
    """One agent in result.json; None for what the file does not say."""

    feature_id: int | None = None
    status: str | None = None
    cost: float | None = None
    steps: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    patch_lines: int | None = None
    error: str | None = None


class SourceResult(msgspec.Struct, kw_only=True, frozen=True):
    """result.json."""

    repo: str | None = None
    task_id: int | None = None
    features: list[int] | None = None
    setting: str | None = None
    agent_framework: str | None = None
    model: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    duration_seconds: float | None = None
    agents: dict[str, SourceAgent] | None = None
    agent: SourceAgent | None = None
    """The only agent of setting solo."""
    total_cost: float | None = None
    messages_sent: int | None = None
    lead_agent: str | None = None
    team_features: dict[str, bool] | None = None


class SourceMessage(msgspec.Struct, kw_only=True, frozen=True, rename={
    "sender": "from", "recipient": "to", "text": "message",
}):  # fmt: skip
    """One entry of conversation.json."""

    sender: str | None = None
    recipient: str | None = None
    text: str | None = None
    timestamp: str | float | None = None


class PairFiles(msgspec.Struct, kw_only=True, frozen=True):
    """The small files of a pair."""

    result: SourceResult | None
    verdict: RecordedVerdict | None
    messages: list[SourceMessage] | None
    """None if there is no conversation.json that can be read."""
    is_own: bool
    """Whether this version of CooperBench wrote the files."""
    problems: list[str]


class SourceConfig(msgspec.Struct, kw_only=True, frozen=True):
    """config.json of a run."""

    content: JsonObject | None
    is_own: bool
    problem: str | None

    def text(self, name: str) -> str | None:
        """Return a value that is a text; None if it is not there."""
        value = (self.content or {}).get(name)
        return value if isinstance(value, str) and value else None


def read_config(path: Path) -> SourceConfig:
    """Return config.json of a run. Callers use `call_bounded`."""
    problems: list[str] = []
    content = _read_object(path, problems)
    problem = problems[0] if problems else None
    return SourceConfig(content=content, is_own=_is_own(content), problem=problem)


def read_pair_files(folder: Path) -> PairFiles:
    """Return the small files of a pair. Callers use `call_bounded`: agents may have written them.

    A file that is missing is None; one that cannot be read is also named in `problems`.
    """
    problems: list[str] = []
    result = _read_object(folder / "result.json", problems)
    evaluation = _read_object(folder / "eval.json", problems)
    return PairFiles(
        result=None if result is None else convert(result, SourceResult),
        verdict=None if evaluation is None else _verdict(evaluation),
        messages=_read_messages(folder / "conversation.json", problems),
        is_own=_is_own(result) or _is_own(evaluation),
        problems=problems,
    )


def _is_own(content: JsonObject | None) -> bool:
    schema = (content or {}).get("schema")
    return isinstance(schema, str) and schema.startswith(_OWN_SCHEMA)


def _read_object(path: Path, problems: list[str]) -> JsonObject | None:
    content = _read_json(path, problems)
    if content is None or isinstance(content, dict):
        return content
    problems.append(f"{path.name} does not contain a JSON object: not read")
    return None


def _read_messages(path: Path, problems: list[str]) -> list[SourceMessage] | None:
    content = _read_json(path, problems)
    if isinstance(content, dict):
        content = content.get("messages")
    if content is None:
        return None
    if not isinstance(content, list):
        problems.append(f"{path.name} does not contain a list of messages: not read")
        return None
    entries = [entry for entry in content if isinstance(entry, dict)]
    if len(entries) < len(content):
        count = len(content) - len(entries)
        problems.append(f"{path.name}: {count} of {len(content)} entries are not messages")
    return [convert(entry, SourceMessage) for entry in entries]


def _read_json(path: Path, problems: list[str]) -> object | None:
    """Return the content of a JSON file; None if there is none, or none that can be read."""
    try:
        content: object = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        problems.append(f"{path.name} is not complete JSON: not read")
    else:
        return content
    return None


def _verdict(content: JsonObject) -> RecordedVerdict:
    """Return the verdict in eval.json, of the public layout or of the quick start."""
    if "overall_success" in content or "merged" in content:
        return _quick_start_verdict(content)
    merge = _object(content.get("merge"))
    tests = {name: _tests(value) for name, value in content.items() if _FEATURE.fullmatch(name)}
    return RecordedVerdict(
        rule="public",
        passed=_boolean(content.get("both_passed", content.get("all_passed"))),
        merge_status=_text(merge.get("status")),
        strategy=_text(merge.get("strategy")),
        apply_status=_texts(content.get("apply_status")),
        tests=tests,
        error=_text(content.get("error")),
        evaluated_at=_text(content.get("evaluated_at")),
    )


def _quick_start_verdict(content: JsonObject) -> RecordedVerdict:
    merged = _object(content.get("merged"))
    conflict = _boolean(merged.get("merge_conflict"))
    merge_status = None
    if conflict is not None:
        merge_status = "conflicts" if conflict else "clean"
    names = [name for name in content if _AGENT.fullmatch(name) or name == "merged"]
    return RecordedVerdict(
        rule="quick_start",
        passed=_boolean(content.get("overall_success")),
        merge_status=merge_status,
        strategy=None,
        apply_status={},
        tests={name: _tests(content[name]) for name in names},
        error=_text(merged.get("error")),
        evaluated_at=_text(content.get("evaluated_at")),
    )


def _tests(value: object) -> RecordedTests:
    content = _object(value)
    return RecordedTests(
        passed=_boolean(content.get("passed", content.get("success"))),
        exit_code=_integer(content.get("exit_code")),
        tests_passed=_integer(content.get("tests_passed")),
        tests_failed=_integer(content.get("tests_failed")),
    )


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: object) -> dict[str, str]:
    return {name: text for name, text in _object(value).items() if isinstance(text, str)}
