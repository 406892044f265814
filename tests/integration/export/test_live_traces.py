"""Traces during a run: each span once, and a collector that is away disturbs nothing."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

from cooperbench.cli import main
from cooperbench.export.traces import pair_spans
from cooperbench.report.loading import load_run
from tests.support.collector import collector
from tests.support.tiny import write_tiny

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run(tmp_path: Path, *words: str) -> int:
    write_tiny(tmp_path / "data")
    return main(
        ["run", "-n", "r", "-a", "oracle", "--backend", "local", "-f", "1,2",
         "--dataset-dir", str(tmp_path / "data"), "--log-dir", str(tmp_path / "logs"), *words]
    )  # fmt: skip


def test_a_run_sends_each_span_once(tmp_path: Path) -> None:
    with collector() as received:
        assert run(tmp_path, "--otlp", received.url) == 0
    loaded = load_run(tmp_path / "logs", "r")
    expected = {span.span_id: span for span in pair_spans(loaded, loaded.pairs[0])}
    sent = [int.from_bytes(span.span_id) for span in received.spans]
    assert sorted(sent) == sorted(expected)
    (root,) = [span for span in received.spans if not span.parent_id]
    assert root.attributes["cooperbench.verdict.overall"] is True
    assert "otlp" not in json.loads((tmp_path / "logs/r/config.json").read_text())["invocations"][0]


def test_pairs_of_earlier_calls_are_not_sent_and_new_attempts_are_new_traces(
    tmp_path: Path,
) -> None:
    with collector() as received:
        assert run(tmp_path, "--otlp", received.url) == 0
        first = list(received.spans)
        assert run(tmp_path, "--otlp", received.url) == 0
        assert received.spans == first
        assert run(tmp_path, "--otlp", received.url, "--force") == 0
    second = received.spans[len(first) :]
    assert len(second) == len(first)
    assert {span.trace_id for span in first}.isdisjoint(span.trace_id for span in second)
    assert second[-1].attributes["cooperbench.attempt"] == 2


def test_an_unreachable_collector_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert run(tmp_path, "--otlp", f"http://127.0.0.1:{port}") == 0
    output = capsys.readouterr()
    (line,) = [line for line in output.out.splitlines() if "traces" in line]
    assert line == (
        f"[CooperBench] traces cannot be sent to http://127.0.0.1:{port}/v1/traces: "
        "connection refused; the run goes on, and `cooperbench export RUN --format otlp "
        "--otlp URL` can send them later"
    )
    assert output.err == ""
    assert load_run(tmp_path / "logs", "r").pairs[0].state == "passed"


def test_a_wrong_url_ends_the_call_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--otlp", "collector:4318") == 2
    assert "--otlp collector:4318: not an HTTP URL" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
