"""A Slurm of the tests' own: a controller and two nodes on this machine, without root and without accounting."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=5
KillWait=5
MessageTimeout=30
InactiveLimit=0
JobRequeue=1
MaxArraySize=1001
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=1000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 MaxTime=INFINITE State=UP
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


class Slurm:
    """Running between `start` and `stop`; `SLURM_CONF` tells clients where it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._controller: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        ports = [socket.socket() for _ in range(3)]
        for one in ports:
            one.bind(("127.0.0.1", 0))
        controller, first, second = (one.getsockname()[1] for one in ports)
        for one in ports:
            one.close()
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        self.config.write_text(
            _CONFIG.format(
                host=socket.gethostname().partition(".")[0], user=user, folder=self.folder, controller=controller,
                first=first, second=second,
            )
        )  # fmt: skip
        self._controller = self._run(_program("slurmctld"), "-D")
        for name in ("n1", "n2"):
            self.start_node(name)
        self.wait_until_idle()

    def start_node(self, name: str) -> None:
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._nodes[name] = self._run(_program("slurmd"), "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Like a power cut: the daemon and everything that it runs."""
        daemon = self._nodes.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in self._steps_of(name):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 180
        while self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split() != ["idle", "idle"]:
            assert time.monotonic() < deadline, self.ask("sinfo", "-N") + self._logs()
            time.sleep(0.2)

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def stop(self) -> None:
        self.ask("scancel", "--state=PENDING", "--me")
        self.ask("scancel", "--me")
        for process in (*self._nodes.values(), self._controller):
            if process is not None:
                process.terminate()
        for process in (*self._nodes.values(), self._controller):
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
        for name in ("n1", "n2"):
            for pid in self._steps_of(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)

    def _steps_of(self, name: str) -> list[int]:
        """Processes of jobs on a node, and Slurm's own beside them."""
        wanted = f"SLURM_CONF={self.config}\0".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (entry / "environ").read_bytes() + b"\0"
                words = (entry / "cmdline").read_bytes()
                on_node = f"SLURMD_NODENAME={name}\0".encode() in environment
                if wanted in environment and (
                    on_node or (b"slurmstepd" in words and name.encode() in words)
                ):
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(
                words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/sbin/{name}"


def missing() -> str | None:
    """Why there is none here; None where there can be one."""
    absent = [name for name in ("slurmctld", "slurmd") if not Path(_program(name)).exists()]
    absent += [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]
    return f"no {', '.join(absent)} on this machine" if absent else None
