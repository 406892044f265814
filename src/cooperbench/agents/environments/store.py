"""The environments on disk: made beside their place and moved there whole, so that a half-made one is never used.

`<data>/agents/NAME/` has the virtual environment (`venv`), for a framework without releases its source (`source`), and
`environment.json`, which is written last and says what is in it. A virtual environment cannot be moved: it is made in
a folder with a name of its own, and `NAME` is a link to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.agents.environments.interpreters import checked_interpreter, find_interpreter
from cooperbench.errors import UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.agents.environments.frameworks import Framework

DATA_VARIABLE = "COOPERBENCH_DATA_DIR"
SCHEMA = "cooperbench.environment/1"
_DESCRIPTION = "environment.json"
_INSTALL_SECONDS = 3600
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True)
class Environment:
    """One that is there and whole."""

    framework: Framework
    folder: Path
    description: dict[str, Any]

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def source(self) -> Path:
        """For a framework that needs its source."""
        return self.folder / "source"

    @property
    def version(self) -> str:
        return str(self.description.get("version", ""))


def data_dir() -> Path:
    """Where large things live that the user asked for."""
    if chosen := os.environ.get(DATA_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(base) / "cooperbench"


def environments_dir() -> Path:
    return data_dir() / "agents"


def find_environment(framework: Framework) -> Environment | None:
    """None where it is not installed, or not whole any more."""
    link = environments_dir() / framework.name
    description = read_json(link / _DESCRIPTION)
    if description is None or description.get("schema") != SCHEMA:
        return None
    environment = Environment(framework, link.resolve(), description)
    return environment if environment.python.exists() else None


def get_environment(framework: Framework) -> Environment:
    found = find_environment(framework)
    if found is None:
        raise UserError(f"agent {framework.name!r} is not installed: {framework.install_command}")
    return found


def install(
    framework: Framework, *, source: str | None, python: Path | None, say: Callable[[str], None]
) -> Environment:
    """Make the environment anew; an earlier one stays in use until this one is whole."""
    if framework.needs_source and source is None:
        raise UserError(
            f"{framework.name} has no release to install: name its source tree or git URL, {framework.install_command}"
        )
    if source is not None and not framework.needs_source:
        raise UserError(f"{framework.name} is installed from its releases; --from is not for it")
    ends = (framework.oldest_python, framework.newest_python)
    interpreter = (
        checked_interpreter(python, *ends) if python else find_interpreter(*ends, purpose=framework.name)
    )
    home = environments_dir()
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f".{framework.name}-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    try:
        requirements = list(framework.requirements)
        if source is not None:
            say(f"taking the source from {source}")
            _take_source(framework, source, folder / "source")
            requirements.append(str(folder / "source"))
        say(f"making an environment with {interpreter}")
        _run([str(interpreter), "-m", "venv", str(folder / "venv")], "the environment cannot be made")
        say(f"installing {', '.join(framework.requirements)} (some hundred MB, a few minutes)")
        _install(folder / "venv" / "bin" / "python", requirements)
        environment = Environment(framework, folder, _describe(framework, folder, interpreter, source))
        write_json(folder / _DESCRIPTION, environment.description)
        _put_in_place(folder, home / framework.name)
    except BaseException:
        remove_tree(folder)
        raise
    return environment


def remove(framework: Framework) -> bool:
    """Whether there was anything; half-made ones of killed installations go too."""
    home = environments_dir()
    found = [home / framework.name, *home.glob(f".{framework.name}-*")]
    present = [path for path in found if path.is_symlink() or path.exists()]
    for path in present:
        if path.is_symlink():
            path.unlink()
        else:
            remove_tree(path)
    return bool(present)


def works(environment: Environment) -> bool:
    """Does its Python run, and know the framework? An interpreter that was updated away takes it along."""
    try:
        _run([str(environment.python), "-c", _VERSION_OF, environment.framework.distribution], "")
    except UserError:
        return False
    return True


def size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _take_source(framework: Framework, source: str, target: Path) -> None:
    if "://" in source or source.startswith("git@"):
        _run(["git", "clone", "--quiet", "--depth=1", source, str(target)], f"{source} cannot be cloned")
        _check_source(framework, source, target)
        return
    origin = Path(source).expanduser()
    if not origin.is_dir():
        raise UserError(f"--from {source}: no such folder")
    # Before the copying: a folder that is none may be the user's whole home.
    _check_source(framework, source, origin)
    shutil.copytree(origin, target, symlinks=True, ignore=shutil.ignore_patterns(".venv", "__pycache__"))


def _check_source(framework: Framework, source: str, folder: Path) -> None:
    missing = [name for name in ("pyproject.toml", *framework.source_folders) if not (folder / name).exists()]
    if missing:
        raise UserError(f"--from {source} is no source tree of {framework.name}: it has no {missing[0]}")


def _install(python: Path, requirements: Sequence[str]) -> None:
    uv = shutil.which("uv")
    command = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else []
    command = command or [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*command, *requirements], "the installation failed")


def _describe(framework: Framework, folder: Path, interpreter: Path, source: str | None) -> dict[str, Any]:
    python = folder / "venv" / "bin" / "python"
    version = _run([str(python), "-c", _VERSION_OF, framework.distribution], "it cannot be used").strip()
    return {
        "schema": SCHEMA,
        "framework": framework.name,
        "version": version,
        "python": str(interpreter),
        "source": source,
        "requirements": list(framework.requirements),
        "size_bytes": size_bytes(folder),
        "installed_at": utc_now(),
    }


def _put_in_place(folder: Path, link: Path) -> None:
    """One rename decides; what was there before is removed after it."""
    before = link.resolve() if link.is_symlink() else None
    beside = link.with_name(f"{folder.name}.link")
    beside.symlink_to(folder.name)
    beside.replace(link)
    if before is not None:
        remove_tree(before)


def _run(argv: Sequence[str], problem: str) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{problem}: {error}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UserError(f"{problem}: {printable(words)[:300]}")
    return done.stdout
