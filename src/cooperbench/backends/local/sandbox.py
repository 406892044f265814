"""One local sandbox, from its folder to its end. docs/local.md describes its isolation."""

from __future__ import annotations

import errno
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
    View,
    copy_tree,
)
from cooperbench.backends.local.spawner import free_space
from cooperbench.errors import SandboxDead, SandboxError
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.channel import CappedOutput, Channel, Command, PipeTransport, quote
from cooperbench.sandbox.contract import TIMEOUT_EXIT_CODE, CommandResult, SandboxOptions, Stream
from cooperbench.temporary import remove_tree

NOT_STARTED = "the sandbox did not start: "
_OPEN_SECONDS = 60.0
_DYING_SECONDS = 5.0
"""Seconds that a killed sandbox may take to end."""
_READ_BYTES = 1 << 18
_MAX_POLL_SECONDS = 3600.0
_MIN_FREE_BYTES = 1 << 20


class LocalSandbox(Sandbox):
    """A sandbox made of namespaces, and the folder with its files. Process 1 is `supervisor.sh`."""

    def __init__(  # noqa: PLR0913  # most are keywords with a default
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
        """Start the sandbox; SandboxError if that fails.

        Args:
            builder: Makes its file system.
            bubblewrap: Starts its processes.
            content: Files that it begins with.
            lifetime_seconds: Seconds after which it ends.
            workdir: Working directory of commands.
            options: Network policy and programs.
            limits: Resources that it may use.
            on_end: Called with the sandbox when it has been removed.
        """
        super().__init__(lifetime_seconds=lifetime_seconds, workdir=workdir, on_end=on_end)
        self._folder = Path(mkdtemp(dir=builder.run_folder))
        self._log = self._folder / "log"
        self.content = content
        self.options = options or SandboxOptions()
        self._bubblewrap = bubblewrap
        self._limits = limits or Limits()
        self._timer = threading.Timer(
            min(lifetime_seconds, threading.TIMEOUT_MAX),
            self.end,
            [f"it reached its lifetime of {lifetime_seconds:g} s"],
        )
        self._timer.daemon = True
        self._control_lock = threading.Lock()
        self._control: PipeTransport | None = None
        """Connection to process 1; None before its start and after its end."""
        self._process: SandboxProcess | None = None
        """Process 1: the supervisor, later the last command. None if it could not be started."""
        self._view = View([], [], [])
        try:
            self._view = builder.build(self._folder, content, self.options, bubblewrap.overlays)
            system = content.image.key if content.image else ""
            self._start_supervisor(tools_are_trusted=system in builder.proven_tools)
            self._timer.start()
            # The first channel checks that commands can be run.
            with self._channel():
                pass
            builder.proven_tools.add(system)
        except BaseException as error:
            reason = last_line(self._log)
            self.terminate()
            if isinstance(error, SandboxError):
                raise SandboxError(f"{NOT_STARTED}{reason or error}") from error
            raise

    def open_stream(self, argv: Sequence[str]) -> Stream:
        """Start a command that talks over its stdin and stdout."""
        mark = secrets.token_hex(8)
        with self._alive():
            write_fd, read_fd = self._open_pipes("stream", mark, *argv)
        stdin = os.fdopen(write_fd, "wb", buffering=0)
        stdout = os.fdopen(read_fd, "rb")
        return Stream(stdin, stdout, lambda: self.end_stream(mark))

    @property
    def init_pid(self) -> int:
        """Pid of process 1 on the host."""
        if self._process is None:
            raise SandboxDead("the sandbox has not started")
        return self._process.init_pid

    def has_ended(self) -> bool:
        """Return whether process 1 has ended."""
        return self._process is None or self._process.has_ended()

    def keep_files(self, target: Path, excluded: Sequence[str] = ()) -> None:
        """End the sandbox and turn what changed in it into a layer for others.

        Args:
            target: Folder to create.
            excluded: Absolute paths whose changes are dropped.
        """
        with self._end_lock:
            self._check_alive()
            self._stop()
            self._end_reason = "its files were kept"
        root = self._folder / "root"
        for path in (SCRATCH_DIR, *excluded):
            remove_inside(root, path)
        try:
            root.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            target.mkdir()
            copy_tree(root, target)

    # Starting and ending processes.

    def _start_supervisor(self, *, tools_are_trusted: bool) -> None:
        stdin, control_write = os.pipe()
        control_read, stdout = os.pipe()
        self._control = PipeTransport(control_write, control_read)
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log_fd = os.open(self._log, log_flags, 0o600)
        arguments = ["serve", IO_DIR, SCRATCH_DIR, self._workdir]
        if tools_are_trusted:
            arguments.append("trusted")
        self._start_process(arguments, (stdin, stdout, log_fd))

    def _start_process(self, arguments: list[str], stdio: tuple[int, int, int]) -> SandboxProcess:
        """Start process 1 with these arguments of `supervisor.sh`; close the descriptors."""
        file_kib = self._limits.disk_bytes // 1024
        argv = [SHELL, f"{LIB_DIR}/supervisor.sh", str(self._limits.processes), str(file_kib)]
        argv += arguments
        try:
            self._process = self._bubblewrap.start(
                self._folder, self._view, argv, stdio, self._limits
            )
        finally:
            for fd in stdio:
                os.close(fd)
        return self._process

    def _stop(self) -> None:
        """End all its processes; keep its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close_channels()
        with self._control_lock:
            control, self._control = self._control, None
            if self._process is not None:
                self._process.close_io()
        if control is not None:
            control.close()

    def _remove(self) -> None:
        self._timer.cancel()
        self._stop()
        overlay_work = self._folder / "work/work"
        if overlay_work.exists():
            # The kernel makes this folder of an overlay inaccessible even to its owner.
            overlay_work.chmod(0o700)
        remove_tree(self._folder)

    # Channels.

    def _open_channel(self) -> Channel:
        self._check_alive()
        channel = Channel(PipeTransport(*self._open_pipes("channel")))
        try:
            channel.handshake()
        except SandboxError as error:
            if free_space(self._folder).smaller < _MIN_FREE_BYTES:
                raise SandboxError("the disk of this machine is full") from error
            raise
        return channel

    def _open_pipes(self, kind: str, *arguments: str) -> tuple[int, int]:
        """Let process 1 start a `channel` or a `stream`; return our ends of its stdin and stdout.

        They are named pipes in a folder that the sandbox sees read-only: nothing inside can replace
        them.
        """
        with self._control_lock:
            if self._control is None or self._process is None:
                raise SandboxDead("the sandbox has ended")
            number = str(next(self._numbers))
            stdin_path = self._process.io / f"{number}.in"
            stdout_path = self._process.io / f"{number}.out"
            open_fds: list[int] = []
            try:
                os.mkfifo(stdin_path, 0o600)
                os.mkfifo(stdout_path, 0o600)
                # Opening one end waits for the other, but opening both does not. This descriptor is
                # closed below, so that we notice when the sandbox closes its end.
                open_fds.append(os.open(stdin_path, os.O_RDWR | os.O_CLOEXEC))
                read_fd = os.open(stdout_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                open_fds.append(read_fd)
                _send_request(self._control, [kind, number, *arguments])
                write_fd = os.open(stdin_path, os.O_WRONLY | os.O_CLOEXEC)
                os.set_blocking(read_fd, True)
                open_fds.remove(read_fd)
                return write_fd, read_fd
            finally:
                for fd in open_fds:
                    os.close(fd)
                stdin_path.unlink(missing_ok=True)
                stdout_path.unlink(missing_ok=True)

    # The last command.

    def _run_last(self, command: Command) -> CommandResult:
        """Start the sandbox again, on the same files and with nothing in it but the command."""
        started_at = time.monotonic()
        deadline = started_at + command.timeout_seconds
        with self._end_lock:
            self._check_alive()
            self._stop()
            self._check_mount_points()
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            out_fd, stdout = os.pipe()
            err_fd, stderr = os.pipe()
            process = self._start_process(_last_arguments(command), (stdin, stdout, stderr))
        out = CappedOutput(command.output_limit)
        err = CappedOutput(command.output_limit)
        outputs = {out_fd: out, err_fd: err}
        try:
            in_time = _read_until(outputs, deadline)
            in_time = in_time and process.has_ended(deadline - time.monotonic())
            if not in_time:
                process.kill()
                _read_until(outputs, time.monotonic() + _DYING_SECONDS)
            exit_code = process.wait()
        finally:
            os.close(out_fd)
            os.close(err_fd)
        self._check_alive()
        if exit_code is None:
            self._end_reason = "bubblewrap was killed"
            raise self.death()
        return CommandResult(
            returncode=exit_code if in_time else TIMEOUT_EXIT_CODE,
            stdout=out.taken(),
            stderr=err.taken(),
            stdout_cut=out.cut,
            stderr_cut=err.cut,
            timed_out=not in_time,
            duration_seconds=time.monotonic() - started_at,
        )

    def _check_mount_points(self) -> None:
        """Raise SandboxDestroyed if a mount point leads out of the sandbox.

        Bubblewrap follows links, and a command may have put links where it will mount something.
        """
        root = os.path.realpath(self._folder / "root")
        for argument in self._view.arguments:
            if not argument.startswith("/"):
                continue
            target = os.path.realpath(f"{root}/{argument}")
            if os.path.commonpath((root, target)) != root:
                self._destroyed = True
                self._end_reason = "links lie where the system is to be mounted"
                raise self.death()

    # Reasons of its end.

    def _was_silenced(self) -> bool:
        return self._process is not None and not self._process.has_ended()

    def _find_reason(self) -> str:
        """Return why process 1 does not answer: bubblewrap was killed, or the agent ended it."""
        process = self._process
        if process is not None and process.has_ended(_DYING_SECONDS) and process.wait() is None:
            return "bubblewrap was killed"
        self._destroyed = True
        return last_line(self._log) or "its processes were killed"


def remove_inside(root: Path, path: str) -> None:
    """Remove a file or folder below `root`, unless a link on the way could lead elsewhere."""
    parts = path.strip("/").split("/")
    folder = root
    for part in parts[:-1]:
        folder /= part
        if folder.is_symlink() or not folder.is_dir():
            return
    target = folder / parts[-1]
    if target.is_dir() and not target.is_symlink():
        remove_tree(target)
    else:
        target.unlink(missing_ok=True)


def _last_arguments(command: Command) -> list[str]:
    """Return the arguments of `supervisor.sh` for the last command."""
    arguments = ["last", command.cwd]
    if command.env:
        arguments += ["env", "--"]
        arguments += [f"{name}={value}" for name, value in command.env.items()]
    program, *program_arguments = command.argv
    if program == "bash":
        # A bash whose program file may not be read: the code under test can then neither change its
        # memory nor open its files.
        program = SHELL
    return [*arguments, program, *program_arguments]


def _read_until(outputs: dict[int, CappedOutput], deadline: float) -> bool:
    """Read descriptors into their outputs; return False if one has not ended at the deadline."""
    poller = select.poll()
    for fd in outputs:
        poller.register(fd, select.POLLIN)
    open_count = len(outputs)
    while open_count:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            return False
        for fd, _ in poller.poll(min(left_seconds, _MAX_POLL_SECONDS) * 1000):
            data = os.read(fd, _READ_BYTES)
            outputs[fd].add(data)
            if not data:
                poller.unregister(fd)
                open_count -= 1
    return True


def _send_request(control: PipeTransport, arguments: list[str]) -> None:
    """Send a request to process 1 and wait for its answer; SandboxDead if there is none."""
    deadline = time.monotonic() + _OPEN_SECONDS
    line = b" ".join(quote(os.fsencode(argument)) for argument in arguments)
    answer = b""
    try:
        control.send(line + b"\n", deadline)
        while not answer.endswith(b"\n"):
            data = control.receive(deadline)
            if not data:
                break
            answer += data
    except OSError as error:
        raise SandboxDead(f"the sandbox does not answer: {error}") from error
    if answer != b"ok\n":
        raise SandboxDead("the sandbox has ended")
