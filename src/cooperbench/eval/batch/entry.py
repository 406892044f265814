"""One pair that is judged elsewhere: what a machine gets for it, how it is judged there, and what comes back.

An entry is named by the SHA-256 of all that it holds. `python -m cooperbench.eval.batch.entry` judges one on a machine
of a job, where the job's folder of the bucket is mounted. Exit code 0 says that a result is there.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cooperbench.dataset.images import image_name
from cooperbench.errors import InfraError
from cooperbench.eval import backends
from cooperbench.eval.batch import Order
from cooperbench.eval.evaluator import evaluate_and_write, evaluation_key, read_patches
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References, ReferenceStore, exported
from cooperbench.models import EvalNetwork, Pair, Setting, Task, seats_of
from cooperbench.processes import end_like_ctrl_c
from cooperbench.sandbox.session import SandboxSession
from cooperbench.storage import ExperimentPaths, read_json, write_bytes, write_json
from cooperbench.temporary import remove_tree

ENTRY_VARIABLE = "COOPERBENCH_ENTRY"
FOLDER_VARIABLE = "COOPERBENCH_JOB_FOLDER"
_TOKEN_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
_REFERENCES = "references.json"
_RESULT = ("eval.json", "merged.patch", "tests", _REFERENCES)
_BUNDLED = ("cooperbench", "docker", "requests", "urllib3", "charset_normalizer", "idna", "certifi")
"""Our package, and the client of container engines with what it needs, all of which works without compiled parts."""
_LEFT_OUT = {"__pycache__", "demo"}
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
    patches: str
    """The files that the agents handed in, packed, in base64."""
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

    def unpack(self, task: bytes, folder: Path) -> tuple[Pair, ExperimentPaths]:
        """The pair with its task's files, and the logs with its patches, as they are where the pair comes from."""
        paths = ExperimentPaths(folder / "logs", self.run)
        pair = Pair(
            Task(self.repo, self.task_id, folder / "task", tuple(self.task_features)), tuple(self.features)
        )
        unpack_folder(task, pair.task.path)
        unpack_folder(base64.b64decode(self.patches), paths.pair(pair, self.setting).folder)
        return pair, paths


def make_entry(
    order: Order, pair: Pair, setting: Setting, task_digest: str, backend: str, environment: Mapping[str, str]
) -> Entry:
    place = order.paths.pair(pair, setting)
    patches = [place.agent(seat.agent_id).patch.name for seat in seats_of(pair, setting)]
    return Entry(
        run=order.paths.run_name,
        setting=setting,
        repo=pair.task.repo,
        task_id=pair.task.task_id,
        task_features=list(pair.task.feature_ids),
        features=list(pair.feature_ids),
        task_digest=task_digest,
        patches=base64.b64encode(pack_folder(place.folder, patches)).decode(),
        test_timeout_seconds=order.test_timeout_seconds,
        eval_network=order.eval_network,
        canary=order.canary,
        backend=backend,
        environment=dict(environment),
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    """Nothing is written outside the folder (with Python 3.11.4 or later)."""
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)  # noqa: S202


def take_in(entry: Entry, pair: Pair, packed: bytes, paths: ExperimentPaths) -> dict[str, Any]:
    """Write a result beside its pair; the record that now is eval.json.

    InfraError for a verdict on anything but the pair, patches and tests that lie here now.
    """
    place = paths.pair(pair, entry.setting)
    with tempfile.TemporaryDirectory(prefix="cooperbench-result-") as scratch:
        came = Path(scratch)
        try:
            unpack_folder(packed, came)
        except (OSError, tarfile.TarError, zlib.error) as error:
            raise InfraError(f"the result of {pair.label} cannot be read: {error}") from error
        record = read_json(came / "eval.json") or {}
        key = evaluation_key(
            pair,
            read_patches(place, pair, entry.setting),
            str(record.get("image_digest", "")),
            entry.test_timeout_seconds,
            entry.eval_network,
            entry.canary,
        )
        is_verdict = record.get("status") != "error"
        if record.get("setting") != entry.setting or (is_verdict and record.get("key") != key):
            raise InfraError(f"the result of {pair.label} is of other patches or tests than those here")
        ReferenceStore().add(read_json(came / _REFERENCES))
        remove_tree(place.folder / "tests")
        place.merged_patch.unlink(missing_ok=True)
        # The verdict last: where it is, everything that it speaks of is there too.
        for path in (*came.glob("tests/*.txt"), came / "merged.patch", came / "eval.json"):
            if path.is_file():
                write_bytes(place.folder / path.relative_to(came), path.read_bytes())
    return record


def make_bundle() -> bytes:
    """As a zip, so that nothing has to be downloaded over there. The demo's tasks stay here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name in _BUNDLED:
            package = Path(str(import_module(name).__file__)).parent
            for path in package.rglob("*"):
                parts = path.relative_to(package.parent).parts
                if path.is_file() and path.suffix not in _COMPILED and not _LEFT_OUT.intersection(parts):
                    archive.write(path, "/".join(parts))
    return buffer.getvalue()


def main() -> int:
    end_like_ctrl_c()
    folder, entry_id = Path(os.environ[FOLDER_VARIABLE]), os.environ[ENTRY_VARIABLE]
    entry = Entry(**json.loads((folder / f"entry-{entry_id}.json").read_bytes()))
    os.environ.update(entry.environment)
    with tempfile.TemporaryDirectory(prefix="cooperbench-task-") as scratch:
        task = (folder / f"task-{entry.task_digest}").read_bytes()
        pair, paths = entry.unpack(task, Path(scratch))
        record = _judge(entry, pair, paths, ReferenceStore(folder))
        packed = pack_folder(paths.pair(pair, entry.setting).folder, _RESULT)
        if paths.error_log.is_file():
            sys.stderr.write(paths.error_log.read_text("utf-8", "replace"))
    (folder / f"result-{entry_id}").write_bytes(packed)
    sys.stdout.write(f"{pair.label}: {record['status']} {record.get('error', '')}\n")
    return 0


def _judge(entry: Entry, pair: Pair, paths: ExperimentPaths, store: ReferenceStore) -> dict[str, Any]:
    """What is now in the pair's folder, with the references that the verdict was made by."""
    _sign_in_to_registry(image_name(pair.task))
    with SandboxSession(backends.get_backend(entry.backend)) as session:
        executor = TestExecutor(session, entry.test_timeout_seconds, entry.run)
        references = References(executor, entry.eval_network, store)
        record = evaluate_and_write(paths, pair, entry.setting, references, canary=entry.canary)
    known = [found for feature in pair.features for found in store.about(feature)]
    write_json(paths.pair(pair, entry.setting).folder / _REFERENCES, exported(known))
    return record


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
