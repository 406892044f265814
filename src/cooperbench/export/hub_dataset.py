"""Export to a dataset of Hugging Face: rows of pairs, messages, and a card with hashes.

`push_dataset` uploads the folder with huggingface_hub (the extra `hub`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import yaml

from cooperbench._version import __version__
from cooperbench.errors import UserError
from cooperbench.export.json_text import json_text
from cooperbench.records import JsonObject
from cooperbench.report.analysis import rate_rows
from cooperbench.report.formatting import rate_text
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import MARK, MARK_NOTE, mismatch_lines
from cooperbench.report.pair_table import pair_rows, parquet_bytes
from cooperbench.storage import read_bytes, write_bytes
from cooperbench.text import describe_error, printable

CARD = "README.md"
_MARKER = "<!-- written by cooperbench export --format hf -->"


def write_dataset(run: Run, target: Path) -> tuple[list[Path], list[str]]:
    """Write a dataset folder.

    Returns:
        The files, and an empty list: every pair has a row.

    Raises:
        UserError: The folder has something else in it, or pyarrow is not installed.
    """
    _check_folder(target)
    contents = {
        "data/pairs.parquet": parquet_bytes(pair_rows([run])),
        "data/messages.jsonl": _messages_bytes(run),
    }
    card = _card_text(run, contents)
    contents[CARD] = card.encode("utf-8", "replace")
    for name, content in contents.items():
        write_bytes(target / name, content)
    return [target / name for name in contents], []


def _check_folder(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: not a folder")
    if not target.is_dir() or not any(target.iterdir()):
        return
    card = read_bytes(target / CARD) or b""
    if _MARKER.encode() not in card:
        raise UserError(
            f"{target}: the folder is not empty, and not from an earlier export; name another one"
        )


def _messages_bytes(run: Run) -> bytes:
    """Return a line for each message between agents."""
    lines = []
    for pair in run.pairs:
        for message in pair.conversation().messages:
            row: JsonObject = {
                "run": run.name,
                "setting": pair.setting,
                "repo": pair.key.repo,
                "task_id": pair.key.task_id,
                "features": list(pair.key.features),
                "sequence": message.sequence,
                "from": message.sender,
                "to": message.recipient,
                "message": message.text,
                "timestamp": message.timestamp,
                "delivered_at": message.delivered_at,
            }
            lines.append(json_text(row) + "\n")
    return "".join(lines).encode()


def _card_text(run: Run, contents: dict[str, bytes]) -> str:
    """Return the card: metadata for the Hub, configuration, rates, and hashes of the files."""
    has_messages = bool(contents["data/messages.jsonl"])
    configs = [{"config_name": "pairs", "data_files": "data/pairs.parquet", "default": True}]
    if has_messages:
        configs.append({"config_name": "messages", "data_files": "data/messages.jsonl"})
    metadata = {
        "pretty_name": f"CooperBench run {run.name}",
        "tags": ["cooperbench", "coding-agents", "cooperation"],
        "configs": configs,
    }
    config = run.config
    dataset, dataset_revision = run.dataset
    identity = dict(config.identity) if config else {}
    lines = [
        "---",
        yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        _MARKER,
        f"# CooperBench run {_inline(run.name)}",
        "",
        f"Exported by CooperBench {__version__}. Columns: docs/export.md of CooperBench.",
        "",
        "## Results",
        "",
        *_rate_lines(run),
        "",
        "## Configuration",
        "",
        "| option | value |",
        "| --- | --- |",
        f"| dataset | {_inline(dataset)} |",
        f"| dataset_revision | {_inline(dataset_revision)} |",
    ]
    lines += [
        f"| {_inline(name)} | {_inline(value)} |"
        for name, value in identity.items()
        if name not in ("dataset", "dataset_revision")
    ]
    lines += ["", "## Hashes", "", "| file | SHA-256 |", "| --- | --- |"]
    lines += [f"| {name} | `{sha256(data).hexdigest()}` |" for name, data in contents.items()]
    config_bytes = read_bytes(run.root / "config.json") or b""
    lines.append(f"| config.json of the run | `{sha256(config_bytes).hexdigest()}` |")
    if mismatches := mismatch_lines(run.mismatches):
        lines += ["", "## Mismatches", "", f"{MARK_NOTE}.", ""]
        lines += [f"- {_inline(line)}" for line in mismatches]
    return "\n".join(lines) + "\n"


def _rate_lines(run: Run) -> list[str]:
    lines = ["| setting | verdict | rate | n | tasks |", "| --- | --- | --- | ---: | ---: |"]
    for row in rate_rows([run]):
        for verdict, estimate in row.rates.items():
            mark = MARK if verdict in row.affected else ""
            text = f"{rate_text(estimate)}{mark}"
            lines.append(
                f"| {row.setting} | {verdict} | {text} | {estimate.n} | {estimate.clusters} |"
            )
    return lines


def _inline(value: object) -> str:
    """Return a value for a line of Markdown, whatever a run is called."""
    text = printable("" if value is None else str(value)).replace("\n", " ")
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


def check_push(repo_id: str) -> None:
    """Raise UserError if a dataset cannot be pushed, whatever its content."""
    if find_spec("huggingface_hub") is None:
        raise UserError("--push needs huggingface_hub: pip install 'cooperbench[hub]'")
    owner, slash, name = repo_id.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UserError(f"--push {repo_id}: not a dataset, e.g. my-name/my-run")


def push_dataset(folder: Path, files: Sequence[Path], repo_id: str) -> str:
    """Upload these files of a folder to the Hub; a new dataset is private.

    Returns:
        The address of the commit.

    Raises:
        UserError: The Hub is not reachable, or does not accept the files.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [
        CommitOperationAdd(file.relative_to(folder).as_posix(), str(file)) for file in files
    ]
    api = HfApi()
    try:
        api.create_repo(repo_id, repo_type="dataset", private=True, exist_ok=True)
        commit = api.create_commit(
            repo_id,
            operations,
            commit_message=f"Export of CooperBench {__version__}",
            repo_type="dataset",
        )
    except Exception as error:  # each major version of the library raises other HTTP errors
        reason = describe_error(error)
        raise UserError(f"{repo_id} could not be pushed to the Hub: {reason}") from error
    return str(commit.commit_url)
