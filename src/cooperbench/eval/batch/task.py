"""One task of a remote evaluation: judges one entry, on the machine that the task was given, and sends the result back.

This is the same package that the harness is, and the same evaluator, on the backend that the machine has (containers,
as a rule). The exit code speaks to whoever runs tasks: 0 when a result is there, 1 when another attempt may do
better.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.eval.batch.entry import read_entry, unpack_task
from cooperbench.eval.batch.result import pack_result
from cooperbench.eval.batch.store import Store, access_token
from cooperbench.signals import end_like_ctrl_c

if TYPE_CHECKING:
    from cooperbench.eval.batch.entry import Received
    from cooperbench.sandbox.contract import EvalBackend

ENTRY_VARIABLE = "COOPERBENCH_ENTRY"
RETRIES_VARIABLE = "COOPERBENCH_RETRIES"
ATTEMPT_VARIABLE = "BATCH_TASK_RETRY_ATTEMPT"
"""Set by Batch: how often this task has been tried before."""
_REGISTRIES = ("-docker.pkg.dev", "gcr.io")


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
    from cooperbench.dataset.images import image_name
    from cooperbench.eval.batch.shared_references import SharedReferences
    from cooperbench.eval.evaluator import Evaluator
    from cooperbench.eval.executor import TestExecutor
    from cooperbench.eval.reference import References, exported
    from cooperbench.sandbox.session import SandboxSession
    from cooperbench.storage import ExperimentPaths

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

    if name == "docker":
        from cooperbench.eval.batch.judging_docker import JudgingDockerBackend

        return JudgingDockerBackend()
    return backends.get_backend(name)


def _sign_in_to_registry(image: str) -> None:
    """Images in the project's own registry are pulled as the machine's service account."""
    import base64
    import json

    host = image.partition("/")[0]
    if not host.endswith(_REGISTRIES):
        return
    word = base64.b64encode(f"oauth2accesstoken:{access_token()}".encode()).decode("ascii")
    config = Path("~/.docker/config.json").expanduser()
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps({"auths": {host: {"auth": word}}}), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
