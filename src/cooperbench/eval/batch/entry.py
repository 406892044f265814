"""What a task of a remote evaluation gets and what it sends back: entries, results, and our own package as one file.

An entry is one pair, described so that it can be judged anywhere. It is named by the SHA-256 of its own description,
which holds the patches and names the task's files by theirs. So whoever has the name has exactly these inputs, whatever
the position in a job, and an entry whose inputs have changed since is another entry.

A result names its entry and its pair, and its verdict carries the key of everything that went into it. All three must
be those of what lies on disk here and now; a result of anything else is refused, whoever sent it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cooperbench
from cooperbench._version import __version__
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.eval.batch.store import sha256
from cooperbench.eval.evaluator import Evaluation, write_evaluation
from cooperbench.eval.record import JUDGE, evaluation_key, read_patches
from cooperbench.eval.record import SCHEMA as EVALUATION_SCHEMA
from cooperbench.eval.reference import ReferenceStore
from cooperbench.models import SETTINGS, Pair, Task, seats_of
from cooperbench.settings import checked_eval_network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.models import EvalNetwork, Setting
    from cooperbench.storage import ExperimentPaths, PairPaths

ENTRY_SCHEMA = "cooperbench.entry/1"
RESULT_SCHEMA = "cooperbench.remote-result/1"
_LARGEST_RESULT_BYTES = 400_000_000
_CLIENT = ("docker", "requests", "urllib3", "charset-normalizer", "idna", "certifi")
_LEFT_OUT = ("__pycache__", "demo")
_COMPILED = (".pyc", ".so", ".pyd")
_WHEN = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Entry:
    """A pair to be judged elsewhere."""

    entry_id: str
    pair: Pair
    setting: Setting
    description: bytes
    """JSON; its SHA-256 is `entry_id`."""


def pack_task(task: Task) -> bytes:
    """The task's folder, the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(_task_files(task.path)):
            member = archive.gettarinfo(path, path.relative_to(task.path).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = 0
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return zlib.compress(buffer.getvalue(), 6)


def _task_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        base = Path(place)
        found += [base / name for name in (*folders, *names)]
    return [path for path in found if path.is_symlink() or path.is_file() or path.is_dir()]


def unpack_task(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed))) as archive:
        # As an attribute: the argument came with 3.11.4. The digest of what was packed has been checked.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(folder)  # noqa: S202


def make_entry(
    paths: ExperimentPaths,
    pair: Pair,
    setting: Setting,
    *,
    task_digest: str,
    timeout_seconds: int,
    eval_network: EvalNetwork,
    backend: str,
    environment: Mapping[str, str],
) -> Entry:
    """`backend` and `environment` (its settings) are those of the place where it is judged."""
    patches = read_patches(paths.pair(pair, setting), pair, setting)
    content = {
        "schema": ENTRY_SCHEMA,
        "version": __version__,
        "judge": JUDGE,
        "run": paths.run_name,
        **identity(pair, setting),
        "task_features": list(pair.task.feature_ids),
        "task": task_digest,
        "patches": {
            agent_id: None if patch is None else base64.b64encode(patch).decode("ascii")
            for agent_id, patch in patches.items()
        },
        "test_timeout_seconds": timeout_seconds,
        "eval_network": eval_network,
        "backend": backend,
        "environment": dict(environment),
    }
    description = json.dumps(content, sort_keys=True).encode()
    return Entry(sha256(description), pair, setting, description)


def identity(pair: Pair, setting: Setting) -> dict[str, Any]:
    """Which pair, as it stands in an entry, in its result and in the record of a job."""
    return {
        "setting": setting,
        "repo": pair.task.repo,
        "task_id": pair.task.task_id,
        "features": list(pair.feature_ids),
    }


@dataclass(frozen=True)
class Received:
    """An entry as the other side reads it."""

    run: str
    repo: str
    task_id: int
    task_features: tuple[int, ...]
    features: tuple[int, ...]
    setting: Setting
    task_digest: str
    patches: dict[str, bytes | None]
    timeout_seconds: int
    eval_network: EvalNetwork
    backend: str
    environment: dict[str, str]

    def pair(self, task_folder: Path) -> Pair:
        return Pair(Task(self.repo, self.task_id, task_folder, self.task_features), self.features)


def read_entry(description: bytes) -> Received:
    """ValueError for what is no entry of this version."""
    content = json.loads(description)
    if (content["schema"], content["version"], content["judge"]) != (ENTRY_SCHEMA, __version__, JUDGE):
        raise ValueError(f"the entry is of another version: {content['schema']} {content['version']}")
    setting = next(setting for setting in SETTINGS if setting == content["setting"])
    return Received(
        run=content["run"],
        repo=content["repo"],
        task_id=content["task_id"],
        task_features=tuple(content["task_features"]),
        features=tuple(content["features"]),
        setting=setting,
        task_digest=content["task"],
        patches={
            agent_id: None if text is None else base64.b64decode(text, validate=True)
            for agent_id, text in content["patches"].items()
        },
        timeout_seconds=content["test_timeout_seconds"],
        eval_network=checked_eval_network(content["eval_network"]),
        backend=content["backend"],
        environment=content["environment"],
    )


class BadResult(InfraError):
    """What came back is not the result of what was asked."""


def pack_result(
    entry_id: str,
    pair: Pair,
    setting: Setting,
    paths: PairPaths,
    record: Mapping[str, Any],
    references: Mapping[str, Any],
) -> bytes:
    """From the files that an evaluator has written, with the references that it was made by."""
    subjects = _subjects(pair, setting)
    outputs = [
        [subject, number, _text(output.read_bytes())]
        for subject in subjects
        for number in pair.feature_ids
        if (output := paths.test_output(subject, number)).is_file()
    ]
    merged = paths.merged_patch.read_bytes() if paths.merged_patch.is_file() else b""
    content = {
        "schema": RESULT_SCHEMA,
        "entry": entry_id,
        **identity(pair, setting),
        "evaluation": record,
        "merged_patch": _text(merged),
        "outputs": outputs,
        "references": references,
    }
    return zlib.compress(json.dumps(content).encode(), 6)


class Result:
    """One result, read and known to be of its entry."""

    def __init__(self, entry: Entry, packed: bytes) -> None:
        self._entry = entry
        try:
            self._content = _unpacked(packed)
            self.record: dict[str, Any] = dict(self._content["evaluation"])
            self._outputs = {
                (str(subject), int(number)): _data(text) for subject, number, text in self._content["outputs"]
            }
            self._merged = _data(self._content["merged_patch"])
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise BadResult(f"the result of {entry.pair.label} cannot be read: {error}") from error
        self._check_identity()

    @property
    def is_verdict(self) -> bool:
        """Or a reason why there can be none."""
        return self.record.get("status") in ("completed", "no_reference")

    @property
    def error(self) -> CooperBenchError:
        """What it says where it is no verdict."""
        kind = InfraError if self.record.get("infrastructure", True) else UserError
        return kind(str(self.record.get("error")))

    def take_in(
        self, paths: ExperimentPaths, timeout_seconds: int, eval_network: EvalNetwork
    ) -> dict[str, Any]:
        """Write it beside the pair; the record that now is eval.json."""
        entry, place = self._entry, paths.pair(self._entry.pair, self._entry.setting)
        patches = read_patches(place, entry.pair, entry.setting)
        digest = str(self.record.get("image_digest", ""))
        key = evaluation_key(entry.pair, patches, digest, timeout_seconds, eval_network)
        if self.record.get("key") != key:
            raise BadResult(f"the result of {entry.pair.label} is of other patches or tests than those here")
        outputs = {name: data.decode("utf-8", "surrogateescape") for name, data in self._outputs.items()}
        ReferenceStore().add(self._content["references"])
        write_evaluation(place, Evaluation(self.record, self._merged, outputs))
        return self.record

    def _check_identity(self) -> None:
        entry, content = self._entry, self._content
        expected = {"schema": RESULT_SCHEMA, "entry": entry.entry_id, **identity(entry.pair, entry.setting)}
        verdict = {"schema": EVALUATION_SCHEMA, **identity(entry.pair, entry.setting)}
        wrong = [name for name, value in expected.items() if content.get(name) != value]
        wrong += [name for name, value in verdict.items() if self.record.get(name) != value]
        subjects = _subjects(entry.pair, entry.setting)
        wrong += [
            "outputs"
            for subject, number in self._outputs
            if subject not in subjects or number not in entry.pair.feature_ids
        ]
        if wrong:
            raise BadResult(f"the result of {entry.pair.label} is of something else: its {wrong[0]} differs")


def _subjects(pair: Pair, setting: Setting) -> tuple[str, ...]:
    return (*(seat.agent_id for seat in seats_of(pair, setting)), "merged")


def _unpacked(packed: bytes) -> dict[str, Any]:
    # What tests print decides about the size; what unpacks to more than this is no result of ours.
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, _LARGEST_RESULT_BYTES)
    if not unpacker.eof:
        raise ValueError("it is not whole, or too large")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError("no JSON object")
    return content


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _data(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def make_bundle(*, with_engine_client: bool = True) -> bytes:
    """Our package as a zip, the same bytes for the same files, with what it needs beside Python and git.

    The container engine's client is packed with it, from where it is installed here: it is pure Python, and so nothing
    has to be downloaded over there. The demo's tasks stay here: the task that is judged travels by itself.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_package_files(with_engine_client)):
            archive.writestr(zipfile.ZipInfo(name, _WHEN), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _package_files(with_engine_client: bool) -> Iterator[tuple[str, Path]]:
    package = Path(cooperbench.__file__).parent
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        if path.is_file() and path.suffix not in _COMPILED and not any(part in _LEFT_OUT for part in parts):
            yield "/".join(("cooperbench", *parts)), path
    for name in _CLIENT if with_engine_client else ():
        try:
            files = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError:
            raise UserError(
                f"evaluation on Batch needs {name}, to send it along: pip install 'cooperbench[gcp]'"
            ) from None
        for file in files:
            path = Path(str(file.locate()))
            if path.suffix not in _COMPILED and ".." not in file.parts and path.is_file():
                yield str(file), path
