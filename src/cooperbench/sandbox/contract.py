"""The contract between CooperBench and a backend.

A backend creates sandboxes: isolated environments in which commands run. There are two ways to
write one.

The small way: a class with the one method of `EvalBackend`, whose sandboxes have the two methods of
`SandboxProtocol`. `adapted_backend` and `manager.open_sandbox` add what is missing with plain
`exec`.

The full way: subclass `Backend` (see `backend.py`) and override what differs from its defaults,
declare what it can do in `Capabilities`, and return sandboxes that subclass `base_sandbox.Sandbox`.

Errors. Only these exceptions may leave a backend or a sandbox:

- `UserError`: the user has to change something (credentials, a setting, a missing program). The
  message says what.
- `SandboxDead`: the sandbox has ended. `SandboxDestroyed`, its subclass: it was ended from inside,
  which is then an outcome of the agent that worked in it.
- `SandboxTimeout`: the sandbox did not answer although its own time limit should have made it
  answer.
- `SandboxRefused`: the sandbox works, but a file operation is not possible (a folder instead of a
  file, too large).
- `FileNotFoundError`: the file to read does not exist.
- `SandboxError`: every other failure that is not the command's. Callers may retry.
- `ValueError`: a programming error of the caller (a NUL byte in an argument, an empty command).

Any other exception of a third-party backend is turned into a `SandboxError`. A command that fails,
is killed or runs out of time is not an error but a result.

Truncation. Stdout and stderr of a command may be truncated, each by itself: the first and the last
half of the output limit are kept, and the number of bytes left out is known
(`CommandResult.stdout_cut`). Files are never truncated: one that is too large is refused.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal, Protocol

from cooperbench.errors import CooperBenchError, SandboxError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cooperbench.sandbox.base_sandbox import Sandbox as Sandbox

NetworkPolicy = Literal["none", "public"]
Purpose = Literal["agent", "evaluation", "setup"]

TIMEOUT_EXIT_CODE = 124
PROGRAMS_DIR = "/cooperbench/programs"
"""Path inside a sandbox at which it sees `SandboxOptions.programs`."""
NEEDED_TOOLS = "tasks need sh, bash 4.4 or newer, GNU coreutils and git in the image"
DEFAULT_OUTPUT_LIMIT = 1_000_000
"""Bytes kept of stdout and of stderr each."""


class ExecResult(Protocol):
    """The result of one command."""

    @property
    def returncode(self) -> int:
        """Exit status of the command; 128 + N if it was killed by signal N; 124 if it timed out."""

    def stdout_read(self) -> str:
        """Return the standard output as text; may be truncated in the middle, with a note."""

    def stderr_read(self) -> str:
        """Return the standard error as text; may be truncated in the middle, with a note."""


class SandboxProtocol(Protocol):
    """An isolated environment in which commands run: the least that a sandbox must be able to do.

    Both methods are called from several threads. Errors are listed in this module's docstring.
    """

    def exec(self, *args: str) -> ExecResult:
        """Run a command in the sandbox's working directory.

        Example: `exec("bash", "-c", "echo hello")`.

        Return when the command has ended. Processes that it has left in the background go on
        running.

        Raises:
            SandboxDead: The sandbox has ended, before or during the command.
            SandboxTimeout: The sandbox does not answer.
            SandboxError: The command could not be run for another reason.
        """

    def terminate(self) -> None:
        """Kill all processes in the sandbox and remove it. Calling it again does nothing."""


class EvalBackend(Protocol):
    """The least that a backend must be able to do."""

    def create_sandbox(
        self, image: str, timeout: int = 600, workdir: str = "/workspace"
    ) -> SandboxProtocol:
        """Create a sandbox from an image.

        Args:
            image: Image ref, as `prepare` returned it, or the image name of a task.
            timeout: Lifetime in seconds. The sandbox ends by itself when it is over.
            workdir: Working directory of commands.

        Raises:
            UserError: No sandbox can be created until the user changes something.
            SandboxError: This sandbox could not be created.
        """


@dataclass(frozen=True)
class CommandResult:
    """The `ExecResult` of our own sandboxes: output as bytes, and what was cut."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: int = 0
    """Bytes left out of the middle of stdout."""
    stderr_cut: int = 0
    """Bytes left out of the middle of stderr."""
    timed_out: bool = False
    duration_seconds: float = 0.0

    def stdout_read(self) -> str:
        """Return stdout as text, with a note where bytes were cut."""
        return _decode_output(self.stdout, self.stdout_cut)

    def stderr_read(self) -> str:
        """Return stderr as text, with a note where bytes were cut."""
        return _decode_output(self.stderr, self.stderr_cut)


def _decode_output(data: bytes, cut: int) -> str:
    if not cut:
        return data.decode("utf-8", "replace")
    half = len(data) // 2
    head = data[:half].decode("utf-8", "replace")
    tail = data[half:].decode("utf-8", "replace")
    return f"{head}\n[… {cut} bytes of output cut …]\n{tail}"


class Stream:
    """Stdin and stdout of a long-running command.

    Only `close` ends it: its stdin cannot be closed alone.
    """

    def __init__(
        self, stdin: IO[bytes], stdout: IO[bytes], end_command: Callable[[], None]
    ) -> None:
        """Keep the files and the function that ends the command and any blocked read or write."""
        self.stdin = stdin
        self.stdout = stdout
        self._end_command = end_command
        self._closed = False

    def close(self) -> None:
        """End the command with everything that it started. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end_command()
        with suppress(OSError):
            self.stdin.close()
        self.stdout.close()


@dataclass(frozen=True)
class SandboxOptions:
    """Properties of a new sandbox besides image, timeout and working directory."""

    purpose: Purpose = "evaluation"
    network: NetworkPolicy = "none"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Run, pair and agent, for people who look at running sandboxes and for cleaning up."""
    for_test_run: bool = False
    """Only `write_file` and then `run_last` will be called. A backend may create such a sandbox in
    a simpler way."""
    snapshot_excludes: tuple[str, ...] = ()
    """Folders whose changes do not become part of a snapshot (capability `snapshots`)."""
    programs: Path | None = None
    """Folder of this machine that the sandbox sees read-only at `PROGRAMS_DIR` (capability
    `programs`)."""


@dataclass(frozen=True)
class Capabilities:
    """Features of a backend beyond `EvalBackend`. By default there are none."""

    streams: bool = False
    """Its sandboxes have `open_stream`."""
    networks: frozenset[NetworkPolicy] = frozenset()
    """Network policies that it enforces. Others are refused, never weakened. If there are any,
    `create_sandbox` takes `options=SandboxOptions(…)`."""
    snapshots: bool = False
    """It has `locked_snapshot` and `take_snapshot`: changes in a sandbox can become a layer of its
    image."""
    programs: bool = False
    """Its sandboxes can show a folder of this machine, even if they run elsewhere
    (`SandboxOptions.programs`)."""


def check_network(capabilities: Capabilities, options: SandboxOptions) -> None:
    """Raise UserError if the backend cannot enforce the requested network policy."""
    if options.network in capabilities.networks:
        return
    supported = ", ".join(sorted(capabilities.networks)) or "none at all"
    raise UserError(
        f"this backend does not support the network policy {options.network!r}; "
        f"it supports: {supported}"
    )


@dataclass(frozen=True)
class ResourceUse:
    """Resources of a cloud that sandboxes or machines have reserved, in total.

    It does not include prices.
    """

    count: int = 0
    what: str = "sandbox"
    """The unit of `count`: `sandbox` or `machine`."""
    seconds: float = 0.0
    vcpu_seconds: float = 0.0
    """Without resources of unknown size, as in `gib_seconds`."""
    gib_seconds: float = 0.0

    def __add__(self, other: ResourceUse) -> ResourceUse:
        return ResourceUse(
            count=self.count + other.count,
            what=self.what if self.count else other.what,
            seconds=self.seconds + other.seconds,
            vcpu_seconds=self.vcpu_seconds + other.vcpu_seconds,
            gib_seconds=self.gib_seconds + other.gib_seconds,
        )


@contextmanager
def as_sandbox_errors(problem: str) -> Iterator[None]:
    """Turn exceptions of a third-party backend into a SandboxError that begins with `problem`."""
    try:
        yield
    except CooperBenchError:
        raise
    except Exception as error:
        raise SandboxError(f"{problem}: {type(error).__name__}: {error}") from error
