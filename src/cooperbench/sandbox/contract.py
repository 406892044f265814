"""Where code runs: the contract between CooperBench and a backend.

A backend needs three small protocols (`EvalBackend`, `SandboxProtocol`, `ExecResult`). What it can do beyond them it declares
in `Capabilities`; `manager.open_sandbox` makes up for what is missing with plain `exec`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal, Protocol

from cooperbench.errors import CooperBenchError, SandboxError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cooperbench.models import Image, Task
    from cooperbench.sandbox.base_sandbox import Sandbox as Sandbox

NetworkPolicy = Literal["none", "public"]
Purpose = Literal["agent", "evaluation", "setup"]

TIMEOUT_EXIT_CODE = 124
PROGRAMS_DIR = "/cooperbench/programs"
"""Where a sandbox sees `SandboxOptions.programs`."""
DEFAULT_OUTPUT_LIMIT = 1_000_000
"""Bytes kept of stdout and of stderr each: the first and the last half; what lies between is cut and counted."""


class ExecResult(Protocol):
    @property
    def returncode(self) -> int: ...

    def stdout_read(self) -> str: ...

    def stderr_read(self) -> str: ...


class SandboxProtocol(Protocol):
    """An isolated place for running commands.

    SandboxDead once it has ended, SandboxTimeout when it does not answer, SandboxError for what else is not a command's
    doing. A command that fails is a result; one that runs out of time too: `returncode` 124, no process of it left.
    """

    def exec(self, *args: str) -> ExecResult:
        """Execute a command, e.g. `exec("bash", "-c", "echo hello")`, in the sandbox's working directory."""

    def terminate(self) -> None:
        """End everything in the sandbox and remove it. Calling it again does nothing."""


class EvalBackend(Protocol):
    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> SandboxProtocol:
        """Create a sandbox of an image that lives for at most `timeout` seconds."""


@dataclass(frozen=True)
class CommandResult:
    """Our ExecResult."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: int = 0
    """Bytes left out of the middle of stdout."""
    stderr_cut: int = 0
    timed_out: bool = False
    duration_seconds: float = 0.0

    def stdout_read(self) -> str:
        return _text(self.stdout, self.stdout_cut)

    def stderr_read(self) -> str:
        return _text(self.stderr, self.stderr_cut)


def _text(data: bytes, cut: int) -> str:
    if not cut:
        return data.decode("utf-8", "replace")
    half = len(data) // 2
    note = f"\n[… {cut} bytes of output cut …]\n"
    return data[:half].decode("utf-8", "replace") + note + data[half:].decode("utf-8", "replace")


class Stream:
    """A long-running command's ends. It lasts until `close`: there is no end of its input alone."""

    def __init__(
        self, stdin: IO[bytes], stdout: IO[bytes], end_command: Callable[[], None]
    ) -> None:
        """`end_command` also ends reads and writes that are waiting."""
        self.stdin = stdin
        self.stdout = stdout
        self._end_command = end_command
        self._closed = False

    def close(self) -> None:
        """End the command with everything it started. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end_command()
        with suppress(OSError):
            self.stdin.close()
        self.stdout.close()


@dataclass(frozen=True)
class SandboxOptions:
    """What the layers above ask of a new sandbox beyond image, timeout and workdir."""

    purpose: Purpose = "evaluation"
    network: NetworkPolicy = "none"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Run, pair and agent, for people who look at what is running and for cleaning up."""
    for_test_run: bool = False
    """All that is done in it is to write files and `run_last`, for which a backend may make it in another way."""
    snapshot_excludes: tuple[str, ...] = ()
    """Folders whose changes are not part of a snapshot of it (for backends with the capability `snapshots`)."""
    programs: Path | None = None
    """A folder of this machine, seen at `PROGRAMS_DIR`, read-only (for backends with the capability `programs`)."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend has beyond the protocol. A backend without this attribute has nothing beyond it."""

    streams: bool = False
    """Its sandboxes have `open_stream`."""
    networks: frozenset[NetworkPolicy] = frozenset()
    """Policies it can enforce; one that is not here is refused, never weakened. Where there are any, its
    `create_sandbox` takes `options=SandboxOptions(…)`."""
    snapshots: bool = False
    """It has `locked_snapshot` and `take_snapshot`: what changed in a sandbox can become a layer of its image."""
    programs: bool = False
    """Its sandboxes can show a folder of this machine, though they may run elsewhere: see `SandboxOptions`."""


def check_network(can: Capabilities, options: SandboxOptions) -> None:
    """UserError for a network policy that a backend does not list: it is refused, never weakened."""
    if options.network not in can.networks:
        there_are = ", ".join(sorted(can.networks)) or "none at all"
        raise UserError(
            f"this backend has no network policy {options.network!r}; it has: {there_are}"
        )


@dataclass(frozen=True)
class ResourceUse:
    """What sandboxes or machines of a cloud have reserved, and for how long in all. Prices are the cloud's business."""

    count: int = 0
    what: str = "sandbox"
    """Of what: `sandbox`, `machine`."""
    seconds: float = 0.0
    vcpu_seconds: float = 0.0
    """Without those whose size is not known; `gib_seconds` likewise."""
    gib_seconds: float = 0.0

    def __add__(self, other: ResourceUse) -> ResourceUse:
        return ResourceUse(
            self.count + other.count,
            self.what if self.count else other.what,
            self.seconds + other.seconds,
            self.vcpu_seconds + other.vcpu_seconds,
            self.gib_seconds + other.gib_seconds,
        )


class FullBackend(EvalBackend, Protocol):
    """All that a backend may have. Those from `prepare` to `resource_use` are called where they are there."""

    def create_sandbox(
        self,
        image: str,
        timeout: int = 600,
        workdir: str = "/workspace",
        *,
        options: SandboxOptions | None = None,
    ) -> SandboxProtocol: ...

    def prepare(self, task: Task) -> Image:
        """Make a task ready to be run, once; called from several threads."""

    def check(self) -> None:
        """UserError where no sandbox at all could be made, so that this is said once, not for each."""

    def interrupt(self) -> None:
        """The run is being stopped: calls that wait for a sandbox to be made return."""

    def close(self) -> None:
        """The run is over: release everything."""

    def resource_use(self) -> ResourceUse:
        """What it has used so far, also after `close`."""

    def locked_snapshot(self, task: Task, key: str) -> AbstractContextManager[str | None]:
        """Alone with this key: the reference of the snapshot, None where it is still to be taken."""

    def take_snapshot(self, sandbox: Sandbox, task: Task, key: str) -> str:
        """Keep a sandbox's files, less those that its options leave out, as an image; its reference."""


def capabilities_of(backend: EvalBackend) -> Capabilities:
    found = getattr(backend, "capabilities", None)
    return found if isinstance(found, Capabilities) else Capabilities()


@contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Any exception of a third party's backend is a failure of its sandboxes, not of a command or a task."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        raise SandboxError(f"{what}: {type(error).__name__}: {error}") from error
