"""One program in a sandbox, from its start to the end of everything that it has started."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING, Self, cast

from cooperbench.agents.base import REPO_DIR
from cooperbench.secrets import redact
from cooperbench.text import printable

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cooperbench.sandbox.contract import RichSandbox

_KEPT_BYTES = 1 << 20
"""Of its output, the last of it."""
_PIECE_BYTES = 1 << 16
_LAST_WORDS = 300
_SCRIPT = """
cd -- "$1" || exit
end=$2 input=$3
PATH=$4$PATH
shift 4
"$@" <"$input" 2>&1
printf '\\n%s %s\\n' "$end" $?
"""


class Program:
    """Runs from the beginning; leaving the `with` block kills it and all that it started, in whatever session."""

    def __init__(
        self,
        sandbox: RichSandbox,
        argv: Sequence[str],
        env: Mapping[str, str],
        input_file: str,
        log: Path,
    ) -> None:
        """`PATH` in `env` is put before that of the sandbox."""
        self.ended = threading.Event()
        """By itself."""
        self.exit_code: int | None = None
        """None if it did not end by itself."""
        self._log = log
        self._output = b""
        self._end_mark = secrets.token_hex(16)
        others = {**env}
        path = others.pop("PATH", "")
        words = ["env", *(f"{name}={value}" for name, value in others.items()), *argv]
        start = ["sh", "-c", _SCRIPT, "program", REPO_DIR, self._end_mark, input_file, path]
        self._stream = sandbox.open_stream([*start, *words])
        self._thread = threading.Thread(target=self._read, name="program", daemon=True)
        self._thread.start()

    @property
    def last_words(self) -> str:
        """What it printed last, for a message."""
        lines = self._text().strip().splitlines()
        return printable(lines[-1].strip())[-_LAST_WORDS:] if lines else "it printed nothing"

    def close(self) -> None:
        self._stream.close()
        self._thread.join(10)
        self._log.write_text(self._text(), "utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        output = bytearray()
        # A stream's stdout is buffered, and what has come is wanted at once.
        stdout = cast("io.BufferedReader", self._stream.stdout)
        with contextlib.suppress(OSError, ValueError):
            while piece := stdout.read1(_PIECE_BYTES):
                output += piece
                if len(output) > 2 * _KEPT_BYTES:
                    del output[:-_KEPT_BYTES]
                if self._is_end(output):
                    break
        self._output = bytes(output[-_KEPT_BYTES:])
        self.ended.set()

    def _is_end(self, output: bytearray) -> bool:
        """Background processes may keep its output open, and write to it after its end."""
        mark = f"\n{self._end_mark} ".encode()
        place = output.rfind(mark, max(0, len(output) - _PIECE_BYTES - 2 * len(mark)))
        words = output[place:].split() if place >= 0 else []
        if len(words) < 2 or b"\n" not in output[place + 1 :]:
            return False
        self.exit_code = int(words[1])
        del output[place:]
        return True

    def _text(self) -> str:
        return redact(self._output.decode("utf-8", "replace"))
