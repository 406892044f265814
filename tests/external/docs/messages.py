"""Every message for users, in one text to read: help, what mistakes print, and all errors.

`make messages` writes it to build/messages.txt.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from cooperbench.cli import COMMANDS, main
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCE = ROOT / "src/cooperbench"
ACTIONS = {
    "agents": ("list", "install", "remove"),
    "author": ("init", "mine", "add", "describe", "accept", "check", "pack"),
    "config": ("show", "set", "unset", "gcp"),
}
RUN = "run --dataset-dir demo --backend local -a oracle"
SWEEP = "sweep -n s --dataset-dir demo --backend local -a oracle"
STUDY = "ablate -n s --dataset-dir demo --backend local -a oracle"
MISTAKES = (
    "",
    "no-such-command",
    "--wat",
    "run --wat",
    "run --dataset-dir no-such-folder --backend local -a oracle",
    "run --dataset-dir demo --backend no-such-backend -a oracle",
    "run --dataset-dir demo --backend local -a no-such-agent",
    "run --dataset-dir demo --backend local -a no_such_module:Agent",
    "run --dataset-dir demo --backend local -a ./no-such-program",
    "run --dataset-dir demo --backend local -a scripted",
    "run --dataset-dir demo --backend local -a openhands -m gpt-4o",
    "run --dataset-dir demo --backend local -m no-such-model",
    "run --dataset-dir demo --backend local -m gpt-4o",
    "run --dataset-dir demo --backend local -m gpt-4o --base-url nowhere",
    f"{RUN} -n bad/name",
    f"{RUN} -s no-such-subset",
    f"{RUN} -r no_such_task",
    f"{RUN} -r stencil_task -t 99",
    f"{RUN} -r stencil_task -f 1",
    f"{RUN} -r stencil_task -f 1,99",
    f"{RUN} -r stencil_task -f 1,x",
    f"{RUN} --agents 0",
    f"{RUN} --agents 40",
    f"{RUN} -c 0",
    f"{RUN} -c many",
    f"{RUN} --setting trio",
    f"{RUN} --redis nowhere",
    f"{RUN} --max-cost -1",
    f"{RUN} --step-limit 0",
    f"{RUN} --time-limit soon",
    f"{RUN} --agent-config no-such-file.yaml",
    f"{RUN} --prompts no-such-folder",
    f"{RUN} --image-template no-{{such}}-field",
    f"{RUN} --team-no-roles",
    f"{RUN} --mount nowhere",
    f"{RUN} --gpu A100",
    f"{RUN} --workers 3",
    f"{RUN} --slurm partition=cpu",
    f"{RUN} --executor ray --ray-address nowhere",
    f"{RUN} --from no-such-run",
    f"{RUN} --replay-agent oracle",
    f"{RUN} --eval-network sometimes",
    f"{RUN} --messages -1",
    f"{RUN} --characters many",
    f"{RUN} --delay -1",
    f"{RUN} --loss 2",
    f"{RUN} --topology circle",
    f"{RUN} --topology agent1>agent9",
    f"{RUN} --knows everything",
    f"{RUN} --setting solo --messages 3",
    f"{RUN} --coupling no-such-class",
    f"{RUN} --pull sometimes",
    f"{RUN} --groups 0",
    f"{STUDY} --off",
    f"{STUDY} --off ,",
    f"{STUDY} --off no-such-part",
    f"{STUDY} --off messages --repeat 0",
    f"{STUDY} --off messages --detach",
    "ablate --dataset-dir demo --backend local -a oracle --off messages",
    SWEEP,
    f"{SWEEP} --messages 0,3,3",
    f"{SWEEP} --messages 0,many",
    f"{SWEEP} --agents 1,2",
    f"{SWEEP} --agents 2,4 -f 1,2",
    f"{SWEEP} --setting solo --messages 0,3",
    f"{SWEEP} --off git --effect 0.9",
    "eval",
    "eval -n no-such-run",
    "status no-such-run",
    "attach no-such-run",
    "view no-such-run",
    "report",
    "report no-such-run",
    "report no-such-run --interval guess",
    "compare no-such-run",
    "compare no-such-run another",
    "compare a:trio b",
    "compare a b c",
    "export no-such-run",
    "export --verify no-such-file",
    "export no-such-run --format word",
    "tasks --dataset-dir no-such-folder",
    "tasks --dataset-dir demo -r no_such_task",
    "validate --dataset-dir no-such-folder",
    "validate --dataset-dir demo --repeat 0",
    "validate --dataset-dir demo --import no-such-file",
    "agents install no-such-framework",
    "agents remove no-such-framework",
    "images list --dataset-dir no-such-folder",
    "images push --dataset-dir demo --registry",
    "images pull --backend local --dataset-dir demo",
    "images build --backend local --dataset-dir demo",
    "images clean --backend local --max-size large",
    "images clean --backend local --older-than 0",
    "images import",
    "images import no-such-file",
    "images export --dataset-dir demo",
    "author init",
    "author init no-such-folder",
    "author add no_such_task --branch x",
    "author add no_such_task",
    "author accept no_such_task 1,2",
    "author mine",
    "author mine no-such-folder",
    "author mine . --features 1",
    "author describe no_such_task",
    "author check no_such_task",
    "author pack no_such_task",
    "author pack no_such_task --to shared",
    "prompts --dataset-dir demo -s no-such-subset",
    "config set backend no-such-backend",
    "config set no-such-setting x",
    "config unset no-such-setting",
    "config set eval_network sometimes",
    "schema no-such-file",
    "clean --backend no-such-backend",
    "demo --setting team",
    "demo -c 0",
)
"""Calls that are mistakes, to be started in an empty folder without any settings or keys."""


@dataclass(frozen=True)
class Call:
    """What a call has printed."""

    command: str
    status: int
    stdout: str
    stderr: str


def call(command: str) -> Call:
    """Run a command of CooperBench in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        status = main(command.split())
    return Call(command, status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def empty_user(folder: Path) -> Iterator[None]:
    """Work in a folder as a user without settings, keys or a cache."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    home = {name: str(folder / "home") for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    environment = {**kept, **home, "COLUMNS": "100"}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment, clear=True):
        yield


def error_messages() -> dict[str, list[str]]:
    """Return the texts of all errors in the source, by module. `{…}` stands for a value."""
    modules = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    error_classes = _error_classes(modules.values())
    messages: dict[str, list[str]] = {}
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and _last_name(node.func) in error_classes and node.args:
                text = _text_of(node.args[-1])
                if text:
                    messages.setdefault(str(path.relative_to(SOURCE)), []).append(text)
    return messages


def _error_classes(modules: Iterable[ast.Module]) -> set[str]:
    """Return the names of CooperBench's own errors."""
    bases: dict[str, set[str]] = {}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {_last_name(base) for base in node.bases}
    classes = {"CooperBenchError"}
    while True:
        found = {name for name, parents in bases.items() if parents & classes} | classes
        if found == classes:
            return classes
        classes = found


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def texts_of(path: Path) -> list[str]:
    """Return all texts in a module, with `{…}` for values."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [_text_of(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]


def _text_of(node: ast.expr) -> str:
    """Return a text in the source; empty if it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(_text_of(value) or "{…}" for value in node.values)


def help_commands() -> list[str]:
    """Return the calls that print help pages."""
    commands = ["--help"]
    for command in COMMANDS:
        commands.append(f"{command} --help")
        commands += [f"{command} {action} --help" for action in ACTIONS.get(command, ())]
    return commands


def write_messages() -> None:
    """Print all messages."""
    prefix = "cooperbench-messages-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, empty_user(Path(folder)):
        calls = [call(command) for command in (*help_commands(), *MISTAKES)]
    for finished in calls:
        sys.stdout.write(f"$ cooperbench {finished.command}\n{finished.stdout}{finished.stderr}\n")
    for module, messages in error_messages().items():
        sys.stdout.write("\n".join((f"# {module}", *messages)) + "\n\n")


if __name__ == "__main__":
    write_messages()
