"""Logs of Inspect: every pair is a sample, and what a pair does not have is not made up."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

from cooperbench.export import export_run
from cooperbench.report.loading import load_run
from tests.support.report.factory import Kind, Style, layout, share, write_run

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[Kind, float] = {
    "passed": 3, "conflict": 2, "capability": 2, "error": 1, "missing": 1, "broken": 1, "unevaluated": 1,
}  # fmt: skip


def members(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_each_pair_is_a_sample_and_has_scores_or_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(2, 6, 30), share(KINDS), style=Style(bare=True))
    run = load_run(tmp_path, "r")
    export_run(run, "inspect", tmp_path / "r.eval")
    content = members(tmp_path / "r.eval")
    samples = {
        name.removeprefix("samples/").removesuffix("_epoch_1.json"): sample
        for name, sample in content.items()
        if name.startswith("samples/")
    }
    assert list(samples) == [sample["id"] for sample in content["summaries.json"]]
    for pair, sample in zip(run.pairs, samples.values(), strict=True):
        assert sample["metadata"]["state"] == pair.state
        assert ("error" in sample) == (not pair.verdicts)
        letters = {name: "C" if value else "I" for name, value in pair.verdicts.items()}
        assert {name: score["value"] for name, score in sample["scores"].items()} == letters
    results = content["header.json"]["results"]
    assert (results["total_samples"], results["scores"][0]["name"]) == (30, "overall")
    assert results["completed_samples"] == len([pair for pair in run.pairs if pair.verdicts])


def test_export_is_deterministic(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r", {"x_task": {1: [(1, 2)]}})
    result_file = paths.pair_named("coop", "x_task", 1, (1, 2)).result
    result = json.loads(result_file.read_text())
    result["agents"]["agent2"]["unpriced_calls"] = 1
    result_file.write_text(json.dumps(result))
    for name in ("first.eval", "second.eval"):
        export_run(load_run(tmp_path, "r"), "inspect", tmp_path / name)
    assert (tmp_path / "first.eval").read_bytes() == (tmp_path / "second.eval").read_bytes()
    usage = members(tmp_path / "first.eval")["header.json"]["stats"]["model_usage"]["gpt-4o"]
    assert usage == {
        "input_tokens": 8000,
        "output_tokens": 800,
        "total_tokens": 8800,
        "input_tokens_cache_read": 0,
    }
