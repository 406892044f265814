"""Commands and files without a channel, for images that lack bash or a usable tool: one exec of the engine each.

Slower (100-250 ms a command). Needs sh in the image, cat, mkdir, chmod and mv for files, and grep to end a command that
runs out of its time.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from typing import TYPE_CHECKING

from cooperbench.backends.docker.faults import NotRunning, faults
from cooperbench.backends.docker.wire import STDERR
from cooperbench.errors import SandboxError
from cooperbench.sandbox.channel import BACKSTOP_SECONDS, READ_FILE_LIMIT
from cooperbench.sandbox.contract import DEFAULT_OUTPUT_LIMIT, TIMEOUT_EXIT_CODE, CommandResult
from cooperbench.sandbox.unchanneled import Kept, kill_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.backends.docker.wire import Wire

_RUN = 'cd -- "$1" || exit 126; shift; exec "$@"'
_WRITE = """
if [ -d "$1" ]; then echo "it is a folder" >&2; exit 1; fi
mkdir -p -- "${1%/*}/" && cat >"$1.$3" && chmod "$2" "$1.$3" && mv -f "$1.$3" "$1" && exit 0
rm -f "$1.$3"
exit 1
"""
_READ = '[ -e "$1" ] || exit 44; [ -f "$1" ] || { echo "not a regular file" >&2; exit 1; }; exec cat <"$1"'
_NO_SUCH_FILE = 44
_KILLED = 137
_FILE_SECONDS = 300.0
_LOOK_SECONDS = 0.2
"""How long to wait for output before asking whether the command has ended: a background process may hold it open."""
_SILENCE_SECONDS = 1.0
_DYING_SECONDS = 1.0
_KEPT_BY_SH = re.compile(r"(?!(?:IFS|PWD|OLDPWD|PPID|OPTIND|_|PS[124])$)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class PlainExec:
    """What a `ChannelPool` does, without channels."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,
        cwd: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> CommandResult:
        mark = secrets.token_hex(8)
        own = {name: value for name, value in (env or {}).items() if _KEPT_BY_SH.fullmatch(name)}
        others = [f"{name}={value}" for name, value in (env or {}).items() if name not in own]
        command = ["sh", "-c", _RUN, "sh", cwd, *(["env", *others] if others else []), *argv]
        kept = {True: Kept(output_limit), False: Kept(output_limit)}
        started = time.monotonic()
        with faults("running a command", self._engine.client):
            exec_id, wire = self._engine.exec(
                self._container, command, env={**own, "COOPERBENCH_COMMAND": mark}
            )
            feeding = threading.Thread(target=_feed, args=(wire, stdin), daemon=True)
            feeding.start()
            try:
                timed_out = self._collect(exec_id, wire, kept, started + timeout_seconds)
                if timed_out:
                    self._kill(mark)
                    self._collect(exec_id, wire, kept, time.monotonic() + 1)
            finally:
                wire.close()
                feeding.join()
            code = TIMEOUT_EXIT_CODE if timed_out else self._exit_code(exec_id)
        out, err = kept[False], kept[True]
        seconds = round(time.monotonic() - started, 6)
        return CommandResult(code, out.data, err.data, out.cut, err.cut, timed_out, seconds)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        words = ["sh", "-c", _WRITE, "sh", path, f"{mode:o}", f"cooperbench-{secrets.token_hex(4)}"]
        done = self.run(words, timeout_seconds=_FILE_SECONDS, cwd="/", stdin=data)
        if done.returncode:
            raise SandboxError(f"cannot write {path} in the sandbox: {done.stderr_read().strip()[-200:]}")

    def read_file(self, path: str) -> bytes:
        words = ["sh", "-c", _READ, "sh", path]
        done = self.run(words, timeout_seconds=_FILE_SECONDS, cwd="/", output_limit=READ_FILE_LIMIT)
        if done.returncode == _NO_SUCH_FILE:
            raise FileNotFoundError(f"{path}: no such file in the sandbox")
        if done.returncode or done.stdout_cut:
            reason = done.stderr_read().strip()[-200:] or f"it is larger than {READ_FILE_LIMIT} bytes"
            raise SandboxError(f"cannot read {path} in the sandbox: {reason}")
        return done.stdout

    def close(self) -> None:
        """Nothing is held."""

    def _collect(self, exec_id: str, wire: Wire, kept: dict[bool, Kept], deadline: float) -> bool:
        """Read until the command has ended; is it still running at the deadline?"""
        ended = False
        while True:
            silence = _SILENCE_SECONDS if ended else _LOOK_SECONDS
            try:
                frames = wire.receive_frames(min(deadline, time.monotonic() + silence))
            except TimeoutError:
                if ended:
                    return False
                # What was written last may still be on its way.
                ended = not self._engine.api.exec_inspect(exec_id)["Running"]
                if not ended and time.monotonic() >= deadline:
                    return True
                continue
            if not frames:
                return False
            for frame in frames:
                kept[frame.source == STDERR].add(frame.data)
            if time.monotonic() >= deadline and self._engine.api.exec_inspect(exec_id)["Running"]:
                return True

    def _exit_code(self, exec_id: str) -> int:
        deadline = time.monotonic() + BACKSTOP_SECONDS
        while time.monotonic() < deadline:
            state = self._engine.api.exec_inspect(exec_id)
            if not state["Running"] and state["ExitCode"] is not None:
                if state["ExitCode"] == _KILLED:
                    self._check_container()
                return int(state["ExitCode"])
            time.sleep(0.01)
        raise SandboxError("the engine does not say how a command ended")

    def _check_container(self) -> None:
        """Was it the command that was killed, or everything? The container's state comes a little later."""
        deadline = time.monotonic() + _DYING_SECONDS
        while time.monotonic() < deadline:
            if not self._engine.api.inspect_container(self._container)["State"]["Running"]:
                raise NotRunning("the container has ended with the command")
            time.sleep(0.05)

    def _kill(self, mark: str) -> None:
        _, wire = self._engine.exec(self._container, ["sh", "-c", kill_script(), "kill", mark])
        try:
            while wire.receive(time.monotonic() + BACKSTOP_SECONDS):
                pass
        finally:
            wire.close()


def _feed(wire: Wire, data: bytes) -> None:
    try:
        if data:
            wire.send(data, time.monotonic() + _FILE_SECONDS)
        wire.half_close()
    except OSError:
        pass  # the command did not want it
