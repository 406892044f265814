"""One pair that is judged elsewhere: what a machine gets for it, how it is judged there, and what comes back.

An entry is one pair, described so that it can be judged anywhere. It is named by the SHA-256 of its own description,
which holds the patches and names the task's files by theirs: an entry whose inputs have changed is another entry.

`python -m cooperbench.eval.batch.entry` judges one on a machine of a job: our own package, which travels as one file,
on the backend that the machine has (containers, as a rule). The job's folder of the bucket is mounted there. Exit code
0 says that a result is in it, also one without a verdict.

A result names its entry, and its verdict carries the key of everything that went into it: the pair, patches, tests and
image. Both must be those of what lies on disk here and now; a result of anything else is refused, whoever sent it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import cooperbench
from cooperbench.dataset.images import image_name
from cooperbench.errors import InfraError, UserError
from cooperbench.eval import backends
from cooperbench.eval.batch import Order
from cooperbench.eval.evaluator import (
    Evaluation,
    evaluate_pair,
    evaluation_key,
    read_patches,
    write_evaluation,
    write_failure,
)
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References, ReferenceStore, exported
from cooperbench.models import EvalNetwork, Pair, Setting, Task, seats_of
from cooperbench.processes import end_like_ctrl_c
from cooperbench.sandbox.session import SandboxSession
from cooperbench.storage import ExperimentPaths

ENTRY_VARIABLE = "COOPERBENCH_ENTRY"
FOLDER_VARIABLE = "COOPERBENCH_JOB_FOLDER"
_TOKEN_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
_LARGEST_RESULT_BYTES = 400_000_000
_CLIENT = ("docker", "requests", "urllib3", "charset-normalizer", "idna", "certifi")
_LEFT_OUT = ("__pycache__", "demo")
_COMPILED = (".pyc", ".so", ".pyd")


@dataclass(frozen=True)
class Entry:
    """A pair to be judged elsewhere, and how. Everything in it is JSON."""

    run: str
    setting: Setting
    repo: str
    task_id: int
    task_features: list[int]
    features: list[int]
    task_digest: str
    """Of the task's folder, packed."""
    patches: dict[str, str | None]
    """By agent; bytes that are no UTF-8 as surrogates. None where there is none."""
    test_timeout_seconds: int
    eval_network: EvalNetwork
    canary: bool
    backend: str
    environment: dict[str, str]
    """Its settings, where it is judged."""

    @property
    def description(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def entry_id(self) -> str:
        return sha256(self.description)

    def pair(self, task_folder: Path) -> Pair:
        task = Task(self.repo, self.task_id, task_folder, tuple(self.task_features))
        return Pair(task, tuple(self.features))

    def patch_bytes(self) -> dict[str, bytes | None]:
        return {
            agent_id: None if text is None else text.encode("utf-8", "surrogateescape")
            for agent_id, text in self.patches.items()
        }


def make_entry(
    order: Order, pair: Pair, setting: Setting, task_digest: str, backend: str, environment: Mapping[str, str]
) -> Entry:
    patches = read_patches(order.paths.pair(pair, setting), pair, setting)
    return Entry(
        run=order.paths.run_name,
        setting=setting,
        repo=pair.task.repo,
        task_id=pair.task.task_id,
        task_features=list(pair.task.feature_ids),
        features=list(pair.feature_ids),
        task_digest=task_digest,
        patches={
            agent_id: None if patch is None else patch.decode("utf-8", "surrogateescape")
            for agent_id, patch in patches.items()
        },
        test_timeout_seconds=order.test_timeout_seconds,
        eval_network=order.eval_network,
        canary=order.canary,
        backend=backend,
        environment=dict(environment),
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack_task(task: Task) -> bytes:
    return pack_folder(task.path.resolve())


def pack_folder(folder: Path, names: Sequence[str] = ()) -> bytes:
    """A folder, or these of the names in it that are there: the same bytes for the same files."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(member.name).name == "__pycache__" or not (
            member.isreg() or member.isdir() or member.issym()
        ):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names or (".",):
            if (folder / name).exists():
                archive.add(folder / name, arcname=name, filter=plain)
    return zlib.compress(buffer.getvalue(), 6)


def unpack_folder(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed))) as archive:
        # As an attribute: the argument came with 3.11.4. We have packed it ourselves.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(folder)  # noqa: S202


class BadResult(InfraError):
    """What came back is not the result of what was asked."""


def pack_result(entry_id: str, evaluation: Evaluation, references: Mapping[str, Any]) -> bytes:
    """With the references that the verdict was made by."""
    content = {
        "entry": entry_id,
        "evaluation": evaluation.record,
        "merged_patch": evaluation.merged_patch.decode("utf-8", "surrogateescape"),
        "outputs": [[*subject, text] for subject, text in evaluation.outputs.items()],
        "references": references,
    }
    return zlib.compress(json.dumps(content).encode(), 6)


def take_in(entry: Entry, pair: Pair, packed: bytes, paths: ExperimentPaths) -> dict[str, Any]:
    """Write a result beside its pair; the record that now is eval.json.

    BadResult for what is no result of this entry; the error where it came to no verdict.
    """
    try:
        content = _unpacked(packed)
        entry_id, record = content["entry"], content["evaluation"]
        outputs = {(str(subject), int(number)): str(text) for subject, number, text in content["outputs"]}
        merged = content["merged_patch"].encode("utf-8", "surrogateescape")
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise BadResult(f"the result of {pair.label} cannot be read: {error}") from error
    subjects = (*(seat.agent_id for seat in seats_of(pair, entry.setting)), "merged")
    known = {(subject, number) for subject in subjects for number in pair.feature_ids}
    if entry_id != entry.entry_id or not outputs.keys() <= known:
        raise BadResult(f"the result of {pair.label} is of something else")
    if record["status"] == "error":
        raise (InfraError if record["infrastructure"] else UserError)(str(record["error"]))
    place = paths.pair(pair, entry.setting)
    key = evaluation_key(
        pair,
        read_patches(place, pair, entry.setting),
        str(record.get("image_digest", "")),
        entry.test_timeout_seconds,
        entry.eval_network,
        entry.canary,
    )
    if record.get("key") != key:
        raise BadResult(f"the result of {pair.label} is of other patches or tests than those here")
    ReferenceStore().add(content["references"])
    write_evaluation(place, Evaluation(record, merged, outputs))
    return dict(record)


def _unpacked(packed: bytes) -> Any:
    # What tests print decides about the size; what unpacks to more than this is no result of ours.
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, _LARGEST_RESULT_BYTES)
    if not unpacker.eof:
        raise ValueError("it is not whole, or too large")
    return json.loads(data)


def make_bundle() -> bytes:
    """Our package as a zip, with what it needs beside Python and git.

    The container engine's client is packed with it, from where it is installed here: it is pure Python, and so nothing
    has to be downloaded over there. The demo's tasks stay here: the task that is judged travels by itself.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name, path in _package_files():
            archive.write(path, name)
    return buffer.getvalue()


def _package_files() -> Iterator[tuple[str, Path]]:
    package = Path(cooperbench.__file__).parent
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        if path.is_file() and path.suffix not in _COMPILED and not any(part in _LEFT_OUT for part in parts):
            yield "/".join(("cooperbench", *parts)), path
    for name in _CLIENT:
        for file in metadata.distribution(name).files or []:
            path = Path(str(file.locate()))
            if path.suffix not in _COMPILED and ".." not in file.parts and path.is_file():
                yield str(file), path


def main() -> int:
    end_like_ctrl_c()
    folder, entry_id = Path(os.environ[FOLDER_VARIABLE]), os.environ[ENTRY_VARIABLE]
    entry = Entry(**json.loads((folder / f"entry-{entry_id}.json").read_bytes()))
    os.environ.update(entry.environment)
    store = ReferenceStore(folder)
    with tempfile.TemporaryDirectory(prefix="cooperbench-task-") as scratch:
        unpack_folder((folder / f"task-{entry.task_digest}").read_bytes(), Path(scratch, "task"))
        pair = entry.pair(Path(scratch, "task"))
        evaluation = _judge(entry, pair, ExperimentPaths(Path(scratch, "logs"), entry.run), store)
        known = [found for feature in pair.features for found in store.about(feature)]
    (folder / f"result-{entry_id}").write_bytes(pack_result(entry_id, evaluation, exported(known)))
    sys.stdout.write(f"{pair.label}: {evaluation.record['status']} {evaluation.record.get('error', '')}\n")
    return 0


def _judge(entry: Entry, pair: Pair, paths: ExperimentPaths, store: ReferenceStore) -> Evaluation:
    """A verdict, or an error, which is told here, too."""
    patches = entry.patch_bytes()
    try:
        _sign_in_to_registry(image_name(pair.task))
        with SandboxSession(backends.get_backend(entry.backend)) as session:
            executor = TestExecutor(session, entry.test_timeout_seconds, entry.run)
            references = References(executor, entry.eval_network, store)
            return evaluate_pair(pair, entry.setting, patches, references, canary=entry.canary)
    except Exception as error:
        record = write_failure(paths, pair, entry.setting, error)
        if paths.error_log.is_file():
            sys.stderr.write(paths.error_log.read_text("utf-8", "replace"))
        return Evaluation(record)


def _sign_in_to_registry(image: str) -> None:
    """Images in the project's own registry are pulled as the machine's service account."""
    from cooperbench.backends.gcp.engine import google_hosts

    for host in google_hosts([image]):
        request = urllib.request.Request(_TOKEN_URL, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            token = json.load(answer)["access_token"]
        word = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode("ascii")
        config = Path("~/.docker/config.json").expanduser()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"auths": {host: {"auth": word}}}), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
