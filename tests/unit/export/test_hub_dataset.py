"""Datasets for Hugging Face: pyarrow and JSON read the rows, the card has what they rest on."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import yaml

from cooperbench.cli import main
from cooperbench.report.loading import load_run
from cooperbench.report.pair_table import pair_rows
from tests.support.report.factory import TALK, Kind, layout, share, write_run

KINDS: dict[Kind, float] = {"passed": 3, "conflict": 2, "error": 1, "missing": 1}


def export(logs: Path, *words: str) -> int:
    return main(["export", "r", "--format", "hf", "--log-dir", str(logs), *words])


def card_metadata(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_rows_messages_and_card(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(2, 4, 8), share(KINDS))
    assert export(tmp_path) == 0
    folder = tmp_path / "r/export/hf"
    card = (folder / "README.md").read_text()
    configs = {
        entry["config_name"]: entry["data_files"] for entry in card_metadata(card)["configs"]
    }
    assert configs == {"pairs": "data/pairs.parquet", "messages": "data/messages.jsonl"}
    run = load_run(tmp_path, "r")
    rows = import_module("pyarrow.parquet").read_table(folder / configs["pairs"]).to_pylist()
    assert rows == pair_rows([run])
    messages = [
        json.loads(line) for line in (folder / configs["messages"]).read_text().splitlines()
    ]
    with_conversation = [pair for pair in run.pairs if pair.verdicts]
    assert len(messages) == len(TALK) * len(with_conversation)
    assert messages[0]["message"] == TALK[0].text
    for name in configs.values():
        assert f"| {name} | `{sha256((folder / name).read_bytes()).hexdigest()}` |" in card
    assert sha256((tmp_path / "r/config.json").read_bytes()).hexdigest() in card
    assert "| dataset\\_revision | 1234567890abcdef |" in card.replace("dataset_", "dataset\\_")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert export(tmp_path) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_mismatches_are_marked_on_the_card(tmp_path: Path) -> None:
    write_run(tmp_path, "r", layout(1, 2, 4))
    paths = load_run(tmp_path, "r").pairs[0].paths
    evaluation = json.loads(paths.evaluation.read_text())
    evaluation["overall_success"] = False
    paths.evaluation.write_text(json.dumps(evaluation))
    assert export(tmp_path) == 0
    card = (tmp_path / "r/export/hf/README.md").read_text()
    assert "## Mismatches" in card
    assert "†" in card.split("## Configuration")[0]


def test_wrong_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "r", layout(1, 1, 1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.md").write_text("mine")
    for words, answer in (
        (["-o", str(tmp_path / "full")], "the folder is not empty, and not from an earlier export"),
        (["-o", str(tmp_path / "r/config.json")], "config.json: not a folder"),
        (["--push", "nobody"], "--push nobody: not a dataset, e.g. my-name/my-run"),
    ):
        assert export(tmp_path, *words) == 2
        error = capsys.readouterr().err
        assert answer in error
        assert error.count("\n") == 1
    assert main(["export", "r", "--push", "a/b", "--log-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "cooperbench: --push needs --format hf\n"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.md"]


@contextmanager
def hub(status: int = 200) -> Iterator[tuple[str, dict[str, bytes], list[Any]]]:
    """A Hub that accepts commits: its URL, the files it was given, and created repositories."""
    files: dict[str, bytes] = {}
    created: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(self.content_for(body) if status == 200 else {"error": "not allowed"})

        def content_for(self, body: bytes) -> Any:
            if self.path.startswith("/api/repos/create"):
                created.append(json.loads(body))
                return {"url": f"http://{self.headers['Host']}/datasets/me/run"}
            if "/preupload/" in self.path:
                names = [entry["path"] for entry in json.loads(body)["files"]]
                return {
                    "files": [
                        {"path": name, "uploadMode": "regular", "shouldIgnore": False}
                        for name in names
                    ]
                }
            if "/commit/" in self.path:
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        files[entry["value"]["path"]] = b64decode(entry["value"]["content"])
                return {
                    "commitUrl": f"http://{self.headers['Host']}/datasets/me/run/commit/{'1' * 40}",
                    "commitOid": "1" * 40,
                    "success": True,
                }
            return {"errors": [], "warnings": []}

        def answer(self, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", files, created
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_push_uploads_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", layout(1, 2, 4))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with hub() as (url, files, created):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        assert export(tmp_path, "--push", "me/run") == 0
    folder = tmp_path / "r/export/hf"
    assert files == {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert created[0]["type"] == "dataset"
    assert created[0].get("visibility") == "private" or created[0].get("private") is True
    assert "pushed to " in capsys.readouterr().out


def test_a_hub_that_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "r", layout(1, 1, 1))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with hub(status=403) as (url, files, _):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        assert export(tmp_path, "--push", "me/run") == 2
    error = capsys.readouterr().err
    assert error.startswith("cooperbench: me/run could not be pushed to the Hub: ")
    assert error.count("\n") == 1
    assert files == {}
