"""One local sandbox, from its folder to its end. What isolates it, and what does not, is said in docs/backends.md."""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

from cooperbench.backends.local.bubblewrap import Bubblewrap, Limits, SandboxProcess, last_line
from cooperbench.backends.local.rootfs import (
    IO_DIR,
    LIB_DIR,
    SCRATCH_DIR,
    SHELL,
    Content,
    RootFsBuilder,
)
from cooperbench.backends.local.spawner import free_bytes
from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import CappedOutput, Channel, Command, PipeTransport, quote
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult, SandboxOptions, Stream
from cooperbench.temporary import remove_tree

NOT_STARTED = "the sandbox did not start: "
_OPEN_SECONDS = 60.0
_DYING_SECONDS = 5.0
_READ_BYTES = 1 << 18
_MAX_POLL_SECONDS = 3600.0


class LocalSandbox(Sandbox):
    """A sandbox of namespaces, and the folder that holds its files. Process 1 is `supervisor.sh`."""

    _started: SandboxProcess
    """That of the supervisor, later that of the last command. Unset as long as it could not be started."""

    def __init__(
        self,
        builder: RootFsBuilder,
        bubblewrap: Bubblewrap,
        content: Content,
        *,
        lifetime_seconds: float,
        workdir: str = "/workspace",
        options: SandboxOptions | None = None,
        limits: Limits | None = None,
        on_end: Callable[[LocalSandbox], None] = lambda _: None,
    ) -> None:
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir, on_end=on_end)
        self._folder = Path(mkdtemp(dir=builder.run_folder))
        self._log = self._folder / "log"
        self._bubblewrap = bubblewrap
        self._limits = limits or Limits()
        expired = f"it reached its lifetime of {lifetime_seconds:g} s"
        self._timer = threading.Timer(
            min(lifetime_seconds, threading.TIMEOUT_MAX), self.end, [expired]
        )
        self._timer.daemon = True
        self._control_lock = threading.Lock()
        self._control: PipeTransport | None = None
        try:
            self._sees = builder.build(
                self._folder, content, options or SandboxOptions(), overlays=bubblewrap.overlays
            )
            stdin, into = os.pipe()
            out_of, stdout = os.pipe()
            self._control = PipeTransport(into, out_of)
            log_fd = os.open(
                self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            trusted = ["trusted"] if builder.tools_proven else []
            words = ["serve", IO_DIR, SCRATCH_DIR, workdir, *trusted]
            self._start(words, (stdin, stdout, log_fd))
            self._timer.start()
            with self._channel():
                pass
            builder.tools_proven = True
        except BaseException as error:
            reason = last_line(self._log)
            self.terminate()
            if isinstance(error, SandboxError):
                raise SandboxError(f"{NOT_STARTED}{reason or error}") from error
            raise

    def open_stream(self, argv: Sequence[str]) -> Stream:
        mark = secrets.token_hex(8)
        with self._alive():
            write_fd, read_fd = self._open("stream", mark, *argv)
        stdin, stdout = os.fdopen(write_fd, "wb", buffering=0), os.fdopen(read_fd, "rb")
        return Stream(stdin, stdout, lambda: self.end_stream(mark))

    def _remove(self) -> None:
        self._timer.cancel()
        self._stop()
        if (work := self._folder / "work/work").exists():
            work.chmod(0o700)  # an overlay leaves it closed even to its owner
        remove_tree(self._folder)

    def _start(self, words: list[str], stdio: tuple[int, int, int]) -> SandboxProcess:
        """Start its process 1, with these descriptors, which are closed here."""
        try:
            limits = self._limits
            numbers = [str(limits.processes), str(limits.disk_bytes // 1024)]
            argv = [SHELL, f"{LIB_DIR}/supervisor.sh", *numbers, *words]
            self._started = self._bubblewrap.start(self._folder, self._sees, argv, stdio, limits)
        finally:
            for fd in stdio:
                os.close(fd)
        return self._started

    def _stop(self) -> None:
        """End all its processes; its files stay."""
        if hasattr(self, "_started"):
            self._started.kill()
            self._started.wait()
        self._close_channels()
        with self._control_lock:
            control, self._control = self._control, None
            if hasattr(self, "_started"):
                self._started.close_io()
        if control is not None:
            control.close()

    def _open_channel(self) -> Channel:
        self._check_alive()
        channel = Channel(PipeTransport(*self._open("channel")))
        try:
            channel.handshake()
        except SandboxError as error:
            if free_bytes(self._folder) < 1 << 20:
                raise SandboxError("the disk of this machine is full") from error
            raise
        return channel

    def _open(self, kind: str, *words: str) -> tuple[int, int]:
        """Have a channel or a stream started; our ends of its pipes.

        They have names in a folder that the sandbox sees read-only: nothing inside can replace them.
        """
        with self._control_lock:
            if self._control is None:
                raise SandboxDead("the sandbox has ended")
            number = str(next(self._numbers))
            into, out_of = (self._started.io / f"{number}.{name}" for name in ("in", "out"))
            held: list[int] = []
            try:
                os.mkfifo(into, 0o600)
                os.mkfifo(out_of, 0o600)
                # Opened for both, so that neither side waits for the other; let go of below, for EPIPE's sake.
                held.append(os.open(into, os.O_RDWR | os.O_CLOEXEC))
                read_fd = os.open(out_of, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                held.append(read_fd)
                _ask(self._control, [kind, number, *words])
                write_fd = os.open(into, os.O_WRONLY | os.O_CLOEXEC)
                os.set_blocking(read_fd, True)
                held.remove(read_fd)
                return write_fd, read_fd
            finally:
                for fd in held:
                    os.close(fd)
                into.unlink(missing_ok=True)
                out_of.unlink(missing_ok=True)

    def _run_last(self, command: Command) -> CommandResult:
        """By starting the sandbox again, on the same files and with nothing in it but the command."""
        begun = time.monotonic()
        deadline = begun + command.timeout_seconds
        env = ["env", "--", *(f"{name}={value}" for name, value in command.env.items())]
        # A bash whose program may not be read: what it runs can neither change its memory nor open its files.
        argv = [SHELL if command.argv[0] == "bash" else command.argv[0], *command.argv[1:]]
        words = ["last", command.cwd, *(env if command.env else []), *argv]
        with self._end_lock:
            self._check_alive()
            self._stop()
            self._check_places()
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            (out_fd, stdout), (err_fd, stderr) = os.pipe(), os.pipe()
            started = self._start(words, (stdin, stdout, stderr))
        out, err = CappedOutput(command.output_limit), CappedOutput(command.output_limit)
        outputs = {out_fd: out, err_fd: err}
        try:
            in_time = _read_until(outputs, deadline) and started.has_ended(
                deadline - time.monotonic()
            )
            if not in_time:
                started.kill()
                _read_until(outputs, time.monotonic() + _DYING_SECONDS)
            code = started.wait()
        finally:
            os.close(out_fd)
            os.close(err_fd)
        self._check_alive()
        if code is None:
            self._end_reason = "bubblewrap was killed"
            raise self.death()
        code = code if in_time else TIMEOUT_EXIT_CODE
        seconds = time.monotonic() - begun
        return CommandResult(code, out.taken(), err.taken(), out.cut, err.cut, not in_time, seconds)

    def _check_places(self) -> None:
        """Bubblewrap follows links, also out of the sandbox: none may have come to be where it mounts something."""
        root = os.path.realpath(self._folder / "root")
        places = [
            os.path.realpath(f"{root}/{word}") for word in self._sees[0] if word.startswith("/")
        ]
        if any(os.path.commonpath((root, place)) != root for place in places):
            self._destroyed, self._end_reason = True, "links lie where the system is to be mounted"
            raise self.death()

    def _was_silenced(self) -> bool:
        return not self._started.has_ended()

    def _find_reason(self) -> str:
        """If process 1 does not answer, the agent did that, unless bubblewrap was killed."""
        if self._started.has_ended(_DYING_SECONDS) and self._started.wait() is None:
            return "bubblewrap was killed"
        self._destroyed = True
        return last_line(self._log) or "its processes were killed"


def _read_until(outputs: dict[int, CappedOutput], deadline: float) -> bool:
    """Take what comes from these files; False if they have not ended at the deadline."""
    poller = select.poll()
    for fd in outputs:
        poller.register(fd, select.POLLIN)
    still_open = len(outputs)
    while still_open:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            return False
        for fd, _ in poller.poll(min(left_seconds, _MAX_POLL_SECONDS) * 1000):
            data = os.read(fd, _READ_BYTES)
            outputs[fd].add(data)
            if not data:
                poller.unregister(fd)
                still_open -= 1
    return True


def _ask(control: PipeTransport, words: list[str]) -> None:
    """Send a request to process 1."""
    deadline = time.monotonic() + _OPEN_SECONDS
    answer = b""
    try:
        control.send(b" ".join(quote(os.fsencode(word)) for word in words) + b"\n", deadline)
        while not answer.endswith(b"\n") and (data := control.receive(deadline)):
            answer += data
    except OSError as error:
        raise SandboxDead(f"the sandbox does not answer: {error}") from error
    if answer != b"ok\n":
        raise SandboxDead("the sandbox has ended")
