"""One task of a remote evaluation: judges one entry, on the machine that the task was given, and sends the result back.

This is the same package that the harness is, and the same evaluator, on the backend that the machine has (containers,
as a rule). Tasks share references: what one has found, others take from the bucket. The exit code speaks to whoever
runs tasks: 0 when a result is there, 1 when another attempt may do better.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker import DockerBackend
from cooperbench.backends.docker.images import say_nothing
from cooperbench.backends.gcp.engine import google_hosts
from cooperbench.dataset.images import image_name
from cooperbench.eval.batch.entry import pack_result, read_entry, unpack_task
from cooperbench.eval.batch.store import REFERENCES, Store, access_token
from cooperbench.eval.evaluator import Evaluator
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import Reference, References, ReferenceStore, exported, file_name
from cooperbench.models import Image
from cooperbench.processes import end_like_ctrl_c
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from cooperbench.backends.docker.images import Say
    from cooperbench.eval.batch.entry import Received
    from cooperbench.eval.testrun import Conditions
    from cooperbench.models import Task
    from cooperbench.sandbox.contract import EvalBackend

ENTRY_VARIABLE = "COOPERBENCH_ENTRY"
RETRIES_VARIABLE = "COOPERBENCH_RETRIES"
ATTEMPT_VARIABLE = "BATCH_TASK_RETRY_ATTEMPT"
"""Set by Batch: how often this task has been tried before."""


def main() -> int:
    end_like_ctrl_c()
    store, entry_id = Store.from_environment(), os.environ[ENTRY_VARIABLE]
    entry = read_entry(store.get_checked("entries", entry_id, ".json"))
    with tempfile.TemporaryDirectory(prefix="cooperbench-task-") as scratch:
        record, result = _judge(store, entry_id, entry, Path(scratch))
    store.put(f"results/{entry_id}", result)
    sys.stdout.write(f"{entry.repo}/task{entry.task_id} {entry.features}: {record['status']}\n")
    if record["status"] != "error":
        return 0
    sys.stderr.write(f"{record['error']}\n")
    attempts_left = int(os.environ.get(RETRIES_VARIABLE, "0")) - int(os.environ.get(ATTEMPT_VARIABLE, "0"))
    # At the last attempt the error is the result: a task that fails could take others with it.
    return 1 if record["infrastructure"] and attempts_left > 0 else 0


def _judge(store: Store, entry_id: str, entry: Received, scratch: Path) -> tuple[dict[str, Any], bytes]:
    from cooperbench.sandbox.session import SandboxSession

    unpack_task(store.get_checked("tasks", entry.task_digest, ".tar.z"), scratch / "task")
    pair = entry.pair(scratch / "task")
    os.environ.update(entry.environment)
    paths = ExperimentPaths(scratch / "logs", entry.run)
    place = paths.pair(pair, entry.setting)
    for agent_id, patch in entry.patches.items():
        if patch is not None:
            place.agent(agent_id).write_patch(patch)
    _sign_in_to_registry(image_name(pair.task))
    with SandboxSession(_backend(entry.backend)) as session:
        executor = TestExecutor(session, entry.timeout_seconds, entry.run)
        references = References(executor, entry.eval_network, SharedReferences(store, scratch / "references"))
        record = Evaluator(paths, executor, references).evaluate(pair, entry.setting)
    if paths.error_log.is_file():
        sys.stderr.write(paths.error_log.read_text("utf-8", "replace"))
    known = [found for feature in pair.features for found in references.store.about(pair.task, feature)]
    return record, pack_result(entry_id, pair, entry.setting, place, record, exported(known))


def _backend(name: str) -> EvalBackend:
    from cooperbench.eval import backends

    return JudgingDockerBackend() if name == "docker" else backends.get_backend(name)


def _sign_in_to_registry(image: str) -> None:
    """Images in the project's own registry are pulled as the machine's service account."""
    for host in google_hosts([image]):
        word = base64.b64encode(f"oauth2accesstoken:{access_token()}".encode()).decode("ascii")
        config = Path("~/.docker/config.json").expanduser()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"auths": {host: {"auth": word}}}), "utf-8")


class JudgingDockerBackend(DockerBackend):
    """On a machine that only judges: no image without history is made, as no agent will work in it."""

    # Making a layer takes as long as the few test runs that would profit from it here.
    capabilities = replace(DockerBackend.capabilities, snapshots=False)

    def prepare(self, task: Task, say: Say = say_nothing) -> Image:
        """Find, pull or build the task's image; one of the tasks on a machine does, the others wait for it."""
        with self._alone_with(task):
            found = self.images.provide(task, say)
        self.images.remember(found)
        return Image(found.name, digest=found.digest)


class SharedReferences(ReferenceStore):
    """Begins with those that were sent along.

    Tasks that begin at the same time may both make the same reference run; that costs time and nothing else.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(folder)
        self._store = store
        self.add(json.loads(store.get(REFERENCES)))

    def load(self, question: str, image_digest: str, conditions: Conditions) -> Reference | None:
        name = file_name(question, image_digest, conditions)
        if not (self.folder / name).is_file():
            # Not there yet is the rule; a bucket that does not answer costs a test run.
            with suppress(OSError, ValueError):
                found = Reference.from_json(json.loads(self._store.get(f"references/{name}")))
                if found is not None:
                    super().save(found)
        return super().load(question, image_digest, conditions)

    def save(self, reference: Reference) -> None:
        super().save(reference)
        name = file_name(reference.question, reference.image_digest, reference.conditions)
        with suppress(OSError):
            self._store.put(f"references/{name}", json.dumps(reference.to_json()).encode())


if __name__ == "__main__":
    sys.exit(main())
