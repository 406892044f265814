"""The frameworks that have a virtual environment of their own: which ones, and how an environment is made and found.

Their dependencies conflict with each other and with ours. An environment is made beside its place and put there whole,
so that a half-made one is never used: `<data>/agents/NAME/` has the virtual environment (`venv`), for a framework
without releases its source (`source`), and `environment.json`, which is written last and says what is in it. A virtual
environment cannot be moved: it is made in a folder with a name of its own, and `NAME` is a link to it.

The Python is one that is on the machine already. How a framework is run is told in `frameworks`, not here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench.errors import UserError
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Version = tuple[int, int]
DATA_VARIABLE = "COOPERBENCH_DATA_DIR"
SCHEMA = "cooperbench.environment/1"
_DESCRIPTION = "environment.json"
_INSTALL_SECONDS = 3600
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_ASK = "import sys, venv, ensurepip, ssl; print(sys.version_info[0], sys.version_info[1], sys.executable)"
_ANSWER_SECONDS = 30
LITELLM = "litellm>=1.75.5,!=1.82.7,!=1.82.8,!=1.106.*"
"""1.106 fails on every call with tools unless `mcp` is installed."""


@dataclass(frozen=True)
class Framework:
    """One framework, as `cooperbench agents` installs it."""

    name: str
    distribution: str
    """Whose version is shown."""
    oldest_python: Version
    newest_python: Version
    requirements: tuple[str, ...]
    needs_source: bool = False
    """It has no release that can be installed: the user says where its source is."""
    source_folders: tuple[str, ...] = ()
    """What must be in the source besides the package, since no installation brings it."""

    @property
    def install_command(self) -> str:
        return f"cooperbench agents install {self.name}" + (
            " --from PATH_OR_GIT_URL" if self.needs_source else ""
        )


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            name="openhands",
            distribution="openhands-sdk",
            oldest_python=(3, 12),
            newest_python=(3, 13),
            requirements=("openhands-sdk>=1.58,<1.59", "openhands-tools>=1.58,<1.59", LITELLM),
        ),
        Framework(
            name="swe_agent",
            distribution="sweagent",
            oldest_python=(3, 11),
            newest_python=(3, 13),
            requirements=(LITELLM,),
            needs_source=True,
            source_folders=("config", "tools"),
        ),
    )
}


def get_framework(name: str) -> Framework:
    try:
        return FRAMEWORKS[name]
    except KeyError:
        raise UserError(f"no framework {name!r}; there are: {', '.join(FRAMEWORKS)}") from None


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


def find_interpreter(oldest: Version, newest: Version, purpose: str) -> Path:
    """A Python that works, has venv and is of a version between these; the one that runs us if that is one."""
    seen: set[Path] = set()
    for candidate in _candidates(oldest, newest):
        resolved = candidate.resolve()
        if resolved in seen or not resolved.is_file():
            continue
        seen.add(resolved)
        version = _version(candidate)
        if version is not None and oldest <= version <= newest:
            return candidate
    wanted = ".".join(map(str, newest))
    raise UserError(
        f"{purpose} needs Python {'.'.join(map(str, oldest))} to {wanted} with venv, and none was found; "
        f"install one, e.g. `uv python install {wanted}` or `pyenv install {wanted}`, or name it with --python PATH"
    )


def checked_interpreter(path: Path, oldest: Version, newest: Version) -> Path:
    """One that the user named."""
    version = _version(path)
    if version is None:
        raise UserError(f"{path} is no Python that works and has venv")
    if not oldest <= version <= newest:
        found, low, high = (".".join(map(str, each)) for each in (version, oldest, newest))
        raise UserError(f"{path} is Python {found}; {low} to {high} is needed")
    return path


def _candidates(oldest: Version, newest: Version) -> Iterator[Path]:
    # Inside a virtual environment the base is asked: an environment that is removed must not take ours along.
    yield Path(getattr(sys, "_base_executable", sys.executable))
    versions = [(newest[0], minor) for minor in range(newest[1], oldest[1] - 1, -1)]
    for major, minor in versions:
        if found := shutil.which(f"python{major}.{minor}"):
            yield Path(found)
    yield from _pyenv(versions)
    yield from _uv(versions)
    if found := shutil.which("python3"):
        yield Path(found)


def _pyenv(versions: list[Version]) -> Iterator[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    for major, minor in versions:
        # The newest patch release last in the alphabet of numbers.
        folders = sorted(
            (root / "versions").glob(f"{major}.{minor}.*"),
            key=lambda folder: [int(part) for part in folder.name.split(".") if part.isdigit()],
        )
        yield from (folder / "bin" / f"python{major}.{minor}" for folder in reversed(folders))


def _uv(versions: list[Version]) -> Iterator[Path]:
    uv = shutil.which("uv")
    for major, minor in versions if uv else []:
        found = _output([str(uv), "python", "find", "--no-python-downloads", f"{major}.{minor}"])
        if found:
            yield Path(found)


def _version(python: Path) -> Version | None:
    words = (_output([str(python), "-I", "-c", _ASK]) or "").split(" ", 2)
    return (int(words[0]), int(words[1])) if len(words) == 3 else None


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
