"""OTLP: the official messages read our files, and a collector gets the same spans."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.export.otlp import endpoint_of
from cooperbench.report.loading import load_run
from tests.support.collector import ReceivedSpan, collector, spans_of
from tests.support.report.factory import Kind, layout, make_hostile, share, write_run

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[Kind, float] = {"passed": 3, "conflict": 2, "error": 1, "missing": 1, "killed": 1}


def with_base64_ids(content: object) -> object:
    """OTLP JSON as protobuf's own JSON, which has other ids."""
    if isinstance(content, list):
        return [with_base64_ids(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else with_base64_ids(value)
        for key, value in content.items()
    }


def read(path: Path) -> list[ReceivedSpan]:
    spans: list[ReceivedSpan] = []
    for line in path.read_text().splitlines():
        spans += spans_of(ParseDict(with_base64_ids(json.loads(line)), TracesData()))
    return spans


def export(logs: Path, *words: str) -> int:
    return main(["export", "r", "--format", "otlp", "--log-dir", str(logs), *words])


def test_each_line_is_a_trace_and_the_collector_gets_the_same_spans(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(2, 4, 8), share(KINDS))
    with collector() as received:
        assert export(tmp_path, "--otlp", received.url) == 0
    spans = read(tmp_path / "r/export/traces.jsonl")
    assert spans == received.spans
    assert set(received.paths) == {"/v1/traces"}
    pairs = [pair for pair in load_run(tmp_path, "r").pairs if pair.state != "missing"]
    roots = {
        span.attributes["gen_ai.conversation.id"]: span.attributes["cooperbench.state"]
        for span in spans
        if not span.parent_id
    }
    for pair in pairs:
        folder = f"r/coop/{pair.key.repo}/{pair.key.task_id}/{pair.key.group}"
        assert roots[folder] == pair.state
    assert spans[0].resource["service.name"] == "cooperbench"
    assert spans[0].resource["cooperbench.run"] == "r"


def test_export_is_deterministic_and_survives_hostile_texts(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", {"x_task": {7: [(1, 2)]}})
    make_hostile(paths.pair_named("coop", "x_task", 7, (1, 2)).agent("agent1").trajectory)
    written = []
    for name in ("first", "second"):
        assert export(tmp_path, "-o", str(tmp_path / name)) == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert len([span for span in read(tmp_path / "first") if span.name == "chat gpt-4o"]) == 8


def test_wrong_use_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", {"x_task": {7: [(1, 2)]}})
    assert export(tmp_path, "--otlp", "localhost:4318") == 2
    assert "--otlp localhost:4318: not an HTTP URL" in capsys.readouterr().err
    words = ["export", "r", "--otlp", "http://localhost:1", "--log-dir", str(tmp_path)]
    assert main(words) == 2
    assert capsys.readouterr().err == "cooperbench: --otlp needs --format otlp\n"
    assert not (tmp_path / "r/export").exists()


def test_a_collector_that_rejects_spans_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", {"x_task": {7: [(1, 2)]}})
    with collector(status=403) as received:
        assert export(tmp_path, "--otlp", received.url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cooperbench: traces could not be sent to {received.url}/v1/traces: ")
    assert "403" in line


def test_a_base_url_gets_the_standard_path() -> None:
    assert endpoint_of("http://c:4318") == "http://c:4318/v1/traces"
    assert endpoint_of("https://c/otel/") == "https://c/otel/v1/traces"
    assert endpoint_of("https://c/otel/v1/traces?a=b") == "https://c/otel/v1/traces?a=b"
    with pytest.raises(UserError, match="not an HTTP URL"):
        endpoint_of("file:///etc/passwd")
