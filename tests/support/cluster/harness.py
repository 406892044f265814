"""`cooperbench` as a process, with pairs on a cluster; and the two clusters under one set of names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.support.cluster.agents import FOLDER
from tests.support.paths import ROOT
from tests.support.team.redis_fixtures import free_port
from tests.support.tiny import TASK_ID, write_script, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.cluster.slurm import Slurm

_TIMES = ("seconds", "_at", "time", "version", "image", "run_name", "host")


class Cluster(Protocol):
    name: str
    environment: dict[str, str]

    @property
    def words(self) -> list[str]: ...

    def kill_a_node(self, of: int) -> None:
        """The one that works with this process."""
        ...

    def wait_until_whole(self) -> None: ...

    def jobs(self) -> int:
        """How many are there, waiting or at work."""
        ...


class SlurmCluster:
    name = "slurm"
    words = ("--executor", "slurm")

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.environment = {"SLURM_CONF": str(slurm.config)}

    def kill_a_node(self, of: int) -> None:
        environment = Path(f"/proc/{of}/environ").read_bytes().split(b"\0")
        (name,) = (one[16:].decode() for one in environment if one.startswith(b"SLURMD_NODENAME="))
        self.slurm.kill_node(name)
        self._dead = name

    def wait_until_whole(self) -> None:
        if name := self.__dict__.pop("_dead", None):
            self.slurm.start_node(name)
        self.slurm.wait_until_idle()

    def jobs(self) -> int:
        return len(self.slurm.ask("squeue", "-h", "-r").splitlines())


class RayCluster:
    name = "ray"

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.environment: dict[str, str] = {}
        port = free_port()
        self.client_address = f"ray://127.0.0.1:{port}"
        # Pairs run on the others: the head has what the driver needs.
        head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port}
        head["include_log_monitor"] = False  # drivers do not ask for the logs of workers
        with warnings.catch_warnings():
            # It leaves the logs of its client server open.
            warnings.simplefilter("ignore", ResourceWarning)
            self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = []
        # Addresses of their own: a driver connects to a node of its address, which is to be the head.
        self._addresses = (f"127.0.0.{number}" for number in range(2, 255))

    @property
    def words(self) -> tuple[str, ...]:
        return "--executor", "ray", "--ray-address", self._cluster.address

    def kill_a_node(self, of: int) -> None:
        raylet = _parent(of)
        (node,) = (
            one
            for one in self._nodes
            if any(entry.process.pid == raylet for entry in one.all_processes["raylet"])
        )
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.remove(node)

    def wait_until_whole(self) -> None:
        while len(self._nodes) < 2:
            self._nodes.append(
                self._cluster.add_node(num_cpus=1, node_ip_address=next(self._addresses))
            )
        # Also until the one that is gone is known to be: the next driver must not connect to it.
        self._cluster.wait_for_nodes(60)

    def start_apart(self, hidden: Path) -> subprocess.Popen[bytes]:
        """A node, with the resource `apart`, that does not see a folder of this machine."""
        ray: Any = import_module("ray")
        address = next(self._addresses)
        node = [
            "ray",
            "start",
            "--block",
            "--address",
            self._cluster.address,
            "--node-ip-address",
            address,
        ]
        node += ["--num-cpus", "1", "--resources", '{"apart": 1}', "--disable-usage-stats"]
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        command = [
            "unshare",
            "-m",
            "sh",
            "-c",
            script,
            str(hidden),
            sys.executable,
            "-m",
            "ray.scripts.scripts",
        ]
        process = subprocess.Popen([*command, *node[1:]], stdout=subprocess.DEVNULL)
        self._cluster.connect()
        deadline = time.monotonic() + 60
        while not ray.cluster_resources().get("apart"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ray.shutdown()
        return process

    def jobs(self) -> int:
        return 0

    def stop(self) -> None:
        self._cluster.shutdown()


class Harness:
    def __init__(self, root: Path, cluster: Any) -> None:
        self.root = root
        self.cluster = cluster
        self.folder = root / "begun"
        self.folder.mkdir()
        self.logs = root / "logs"
        self.dataset = write_tiny(root / "data", (1, 2, 3))
        self._running: list[subprocess.Popen[str]] = []

    def script(self) -> list[str]:
        """Agents that write to each other and do their work."""
        work: dict[int, list[object]] = {
            number: [{"send": f"I add {number}"}, {"wait": 10}, {"apply": f"data/tiny_task/task{TASK_ID}/feature{number}/feature.patch"}]
            for number in (1, 2, 3)
        }  # fmt: skip
        path = write_script(self.root / "script.yaml", work)
        return ["-a", "scripted", "--agent-config", str(path)]

    def start(
        self, command: str, *words: str, here: bool = False, name: str = "r"
    ) -> subprocess.Popen[str]:
        where = () if here else self.cluster.words
        process = subprocess.Popen(
            [sys.executable, "-m", "cooperbench", command, "-n", name, "--backend", "local", "--dataset-dir",
             str(self.dataset), "--log-dir", str(self.logs), "--no-canary", *where, *words],
            env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.root,
            start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        return process

    def environment(self) -> dict[str, str]:
        return {
            **os.environ, **self.cluster.environment, FOLDER: str(self.folder), "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def call(self, command: str, *words: str, **options: Any) -> tuple[int, str]:
        process = self.start(command, *words, **options)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def tool(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cooperbench", *words, "--log-dir", str(self.logs)],
            env=self.environment(), cwd=self.root, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def open(self) -> None:
        (self.folder / "open").touch()

    def begun(self) -> Counter[str]:
        """How often agents of each pair have begun."""
        return Counter(path.name.rpartition(".")[0] for path in self.folder.glob("*.agent1.*"))

    def pid(self) -> int:
        """Of a process in which agents are at work."""
        return int(next(path for path in self.folder.glob("*.agent1.*")).name.rpartition(".")[2])

    def wait(
        self, until: Callable[[], object], process: subprocess.Popen[str] | None = None
    ) -> None:
        deadline = time.monotonic() + 180
        while not until():
            if process is not None and process.poll() is not None:
                raise AssertionError(process.communicate()[0])
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def output(self) -> str:
        """What there is to see when something hangs."""
        found = [path.read_text()[-3000:] for path in self.logs.rglob("*_log.*")]
        return "\n".join(
            [*found, *(path.read_text()[-3000:] for path in self.logs.rglob("*.jsonl"))]
        )

    def results(self, name: str = "r") -> dict[str, dict[str, Any]]:
        """result.json and eval.json of each pair, without what differs from run to run."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.logs / name / "coop").rglob("*.json")):
            if path.name in ("result.json", "eval.json"):
                found.setdefault(path.parent.name, {})[path.name] = _steady(
                    json.loads(path.read_text())
                )
        return found

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()


def _steady(content: Any) -> Any:
    if isinstance(content, dict):
        return {
            key: _steady(value)
            for key, value in content.items()
            if not any(word in key for word in _TIMES)
        }
    return [_steady(one) for one in content] if isinstance(content, list) else content


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
