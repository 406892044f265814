"""One task of a remote evaluation: judges one entry, on the machine that the task was given, and leaves the result.

This is the same package that the harness is, and the same evaluator, on the backend that the machine has (containers,
as a rule). The job's folder of the bucket is mounted: entries and tasks are read from it, results are written to it,
and tasks share references in it. Exit code 0 says that a result is there, also one without a verdict.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.gcp.engine import google_hosts
from cooperbench.dataset.images import image_name
from cooperbench.eval import backends
from cooperbench.eval.batch.entry import Entry, pack_result, unpack_folder
from cooperbench.eval.evaluator import Evaluation, evaluate_pair, write_failure
from cooperbench.eval.executor import TestExecutor
from cooperbench.eval.reference import References, ReferenceStore, exported
from cooperbench.processes import end_like_ctrl_c
from cooperbench.sandbox.session import SandboxSession
from cooperbench.storage import ExperimentPaths

if TYPE_CHECKING:
    from cooperbench.models import Pair

ENTRY_VARIABLE = "COOPERBENCH_ENTRY"
FOLDER_VARIABLE = "COOPERBENCH_JOB_FOLDER"
_TOKEN_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105


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
