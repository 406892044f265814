"""One pair, described so that it can be judged anywhere: what a task of a remote evaluation gets.

An entry is named by the SHA-256 of its own description, which holds the patches and names the task's files by theirs.
So whoever has the name has exactly these inputs, whatever the position in a job, and an entry whose inputs have
changed since is another entry.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.eval.batch.store import sha256
from cooperbench.eval.record import JUDGE, read_patches
from cooperbench.models import SETTINGS, Pair, Task
from cooperbench.settings import checked_eval_network

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cooperbench.models import EvalNetwork, Setting
    from cooperbench.storage import ExperimentPaths

SCHEMA = "cooperbench.entry/1"


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
        for path in sorted(_files_of(task.path)):
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


def _files_of(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        base = type(folder)(place)
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
        "schema": SCHEMA,
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
    if (content["schema"], content["version"], content["judge"]) != (SCHEMA, __version__, JUDGE):
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
