"""A shell that remembers, on top of commands that do not: for frameworks that expect to sit at a terminal.

Each command still is a fresh bash with a time limit of its own. What a terminal would carry over (the working
directory, exported variables, functions) is written down in the sandbox when a command ends, and read before the next.
Like `client`, this file stands alone: it runs in the environment of a framework.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cooperbench.agents.worker.client import Harness, Result

LONGEST_ARGUMENT = 100_000
"""One argument of a command may not have more than 128 KiB: longer commands go through a file."""

_RESTORE = """\
exec 2>&1
_cb={folder}
if [ -e "$_cb/state" ]; then . "$_cb/state"; else mkdir -p "$_cb"; cd {start} || exit; fi
trap '_cb_code=$?; trap - EXIT; {{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} >"$_cb/state.new" &&
    mv "$_cb/state.new" "$_cb/state"; exit $_cb_code' EXIT
"""


class Shell:
    """One shell of one agent; several may exist side by side under different names."""

    def __init__(self, harness: Harness, name: str = "main", start_folder: str = "") -> None:
        self._harness = harness
        self._folder = f"/tmp/.cooperbench-shell/{name}"  # noqa: S108  # in the sandbox
        self._start_folder = start_folder or str(harness.start["repo_dir"])

    def run(
        self, command: str, *, timeout_seconds: float = 600.0, step: bool = True, thought: str = ""
    ) -> Result:
        """stdout has everything, in the order in which it was written. A command that is ended leaves no trace."""
        preamble = _RESTORE.format(folder=shlex.quote(self._folder), start=shlex.quote(self._start_folder))
        text = f"{preamble}eval {shlex.quote(command)}"
        if len(text.encode("utf-8", "surrogatepass")) > LONGEST_ARGUMENT:
            path = f"{self._folder}-command"
            self._harness.write_file(path, command.encode("utf-8", "surrogateescape"), step=False)
            text = f"{preamble}. {shlex.quote(path)}"
        return self._harness.exec(
            text, timeout_seconds=timeout_seconds, step=step, thought=thought, shown=command
        )

    def reset(self) -> None:
        """As if nothing had been done in it."""
        self._harness.exec(f"rm -rf {shlex.quote(self._folder)}", step=False)
