"""Environments of frameworks and command-line agents: installing and finding them.

`<data>/agents/NAME/` has a virtual environment (`venv`) or npm packages (`programs`), the source of
a framework that has no releases, and `environment.json`. A new environment is made in another
folder, which is renamed once it is complete.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cooperbench.agents import llm
from cooperbench.agents.base import Agent
from cooperbench.errors import UserError
from cooperbench.records import JsonObject
from cooperbench.storage import read_json, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

DATA_VARIABLE = "COOPERBENCH_DATA_DIR"
_DESCRIPTION = "environment.json"
_PYTHON = "venv/bin/python"
_INSTALL_SECONDS = 3600
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_NODE = "node-linux-{arch}@22.23.3"
"""Node.js, installed with every command-line agent, so that images need not have it."""
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_PYTHON_VERSION = "import sys, venv, ensurepip, ssl; print('%d.%d' % sys.version_info[:2])"
LITELLM = "litellm>=1.75.5,!=1.82.7,!=1.82.8,!=1.106.*"
"""Requirement of frameworks. 1.106 fails on every call with tools unless `mcp` is installed."""


@dataclass(frozen=True)
class Framework:
    """A framework that `cooperbench agents` can install."""

    name: str
    distribution: str = ""
    """Python distribution whose version is shown."""
    pythons: tuple[str, ...] = ()
    """Versions of Python that it runs on, the best one first."""
    requirements: tuple[str, ...] = ()
    source_folders: tuple[str, ...] = ()
    """Folders that the source tree must have, for a framework without releases."""
    npm: str = ""
    """npm package of a command-line agent, with its program for Linux."""
    version: str = ""
    """Version of the npm package whose options our adapter uses."""

    @property
    def install_command(self) -> str:
        """The command that installs it, for error messages."""
        source = " --from PATH_OR_GIT_URL" if self.source_folders else ""
        return f"cooperbench agents install {self.name}{source}"


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            name="openhands",
            distribution="openhands-sdk",
            pythons=("3.13", "3.12"),
            requirements=("openhands-sdk>=1.58,<1.59", "openhands-tools>=1.58,<1.59", LITELLM),
        ),
        Framework(
            name="swe_agent",
            distribution="sweagent",
            pythons=("3.13", "3.12", "3.11"),
            requirements=(LITELLM,),
            source_folders=("config", "tools"),
        ),
        Framework(
            "claude_code", npm="@anthropic-ai/claude-code-linux-{arch}@{version}", version="2.1.197"
        ),
        Framework("codex", npm="@openai/codex@{version}-linux-{arch}", version="0.166.0"),
        Framework("gemini_cli", npm="@google/gemini-cli@{version}", version="0.61.0"),
        Framework("opencode", npm="opencode-linux-{arch}@{version}", version="1.18.33"),
    )
}


def get_framework(name: str) -> Framework:
    """Return a framework by its name."""
    if name not in FRAMEWORKS:
        raise UserError(f"no framework {name!r}; available: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


class Environment:
    """The environment of an installed framework."""

    def __init__(self, framework: Framework, folder: Path, description: JsonObject) -> None:
        self.framework = framework
        self.folder = folder.resolve()
        self.description = description
        self.version = str(description["version"])
        self.python = self.folder / _PYTHON
        self.source = self.folder / "source"
        """Source tree of a framework that has no releases."""
        self.programs = self.folder / "programs"
        """Programs of a command-line agent, which sandboxes see as `PROGRAMS_DIR`."""


def environments_dir() -> Path:
    """Return the folder of all environments, in the user's folder for data."""
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(os.environ.get(DATA_VARIABLE) or Path(base) / "cooperbench") / "agents"


def find_environment(framework: Framework) -> Environment | None:
    """Return the environment of a framework; None if it is not installed."""
    folder = environments_dir() / framework.name
    description = read_json(folder / _DESCRIPTION)
    return Environment(framework, folder, description) if description else None


def get_environment(framework: Framework) -> Environment:
    """Return the environment of a framework.

    Raises:
        UserError: It is not installed, or in another version than this CooperBench needs.
    """
    environment = find_environment(framework)
    if environment is None:
        raise UserError(
            f"agent {framework.name!r} is not installed; run `{framework.install_command}`"
        )
    if framework.version not in ("", environment.version):
        raise UserError(
            f"{framework.name} {environment.version} is installed, but this version of CooperBench "
            f"needs {framework.version}: {framework.install_command}"
        )
    return environment


class InstalledAgent(Agent):
    """An agent with its own environment, which calls its model through the gateway."""

    framework: ClassVar[str]
    """Name of its framework."""

    @classmethod
    def warm_up(cls) -> None:
        """Import LiteLLM and start the gateway."""
        llm.warm_up_gateway()

    @classmethod
    def installed(cls) -> Environment:
        """Return its environment."""
        return get_environment(FRAMEWORKS[cls.framework])

    @classmethod
    def version(cls) -> str:
        """Return the version of the installed framework."""
        return cls.installed().version


def install(
    framework: Framework, *, source: str | None, python: Path | None, say: Callable[[str], None]
) -> Environment:
    """Make a new environment. An earlier one stays until the new one is complete.

    Args:
        framework: What to install.
        source: Path or git URL of its source, for a framework without releases.
        python: The Python to use; None to find one.
        say: Called with a line about each part of the installation.
    """
    _check_options(framework, source, python)
    interpreter = None if framework.npm else find_python(framework, python)
    target = environments_dir() / framework.name
    folder = target.with_name(f".{framework.name}-{os.urandom(4).hex()}")
    folder.mkdir(parents=True)
    try:
        if source is not None:
            say(f"copying the source from {source}")
            _copy_source(framework, source, folder / "source")
        if interpreter is None:
            _install_packages(framework, folder / "programs", say)
        else:
            _make_venv(framework, folder, interpreter, say)
        description = {
            "version": _installed_version(folder, framework),
            "python": str(interpreter) if interpreter else None,
            "size_bytes": _size_of(folder),
        }
        write_json(folder / _DESCRIPTION, description)
        remove_tree(target)
        # A virtual environment can be renamed, because only its `bin/python` is used.
        folder.rename(target)
    except BaseException:
        remove_tree(folder)
        raise
    return Environment(framework, target, description)


def _check_options(framework: Framework, source: str | None, python: Path | None) -> None:
    if framework.source_folders and source is None:
        raise UserError(
            f"{framework.name} has no releases: name its source tree or git URL, "
            f"{framework.install_command}"
        )
    if source is not None and not framework.source_folders:
        raise UserError(f"{framework.name} is installed from its releases; omit --from")
    if framework.npm and python is not None:
        raise UserError(f"{framework.name} is not a Python program; omit --python")


def _size_of(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return sum(path.lstat().st_size for path in files)


def remove(framework: Framework) -> bool:
    """Remove an environment and incomplete ones. Return whether there was any."""
    home = environments_dir()
    folders = [*home.glob(framework.name), *home.glob(f".{framework.name}-*")]
    for folder in folders:
        remove_tree(folder)
    return bool(folders)


def works(environment: Environment) -> bool:
    """Return whether an environment can be used. It cannot after its Python was removed."""
    try:
        return bool(_installed_version(environment.folder, environment.framework))
    except UserError:
        return False


def find_python(framework: Framework, named: Path | None) -> Path:
    """Return a Python of a version that the framework runs on.

    `named` is the user's choice. Without it, the Pythons of this machine are tried.
    """
    candidates = [named] if named else _installed_pythons(framework.pythons)
    for candidate in candidates:
        try:
            version = _run([str(candidate), "-I", "-c", _PYTHON_VERSION]).strip()
        except UserError:
            continue
        if version in framework.pythons:
            return candidate
    requirement = f"Python {' or '.join(framework.pythons)} with venv"
    if named:
        raise UserError(f"{named} is not {requirement}, which {framework.name} needs")
    raise UserError(
        f"{framework.name} needs {requirement}, and none was found; install one, e.g. "
        f"`pyenv install {framework.pythons[0]}`, or name it with --python PATH"
    )


def _installed_pythons(versions: Sequence[str]) -> Iterator[Path]:
    # Not the Python of a virtual environment: our environment must survive the removal of that one.
    yield Path(sys.base_prefix) / "bin" / "python3"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser()) / "versions"
    for version in versions:
        program = shutil.which(f"python{version}")
        if program:
            yield Path(program)
        yield from sorted(pyenv.glob(f"{version}.*/bin/python"))


def _make_venv(
    framework: Framework, folder: Path, python: Path, say: Callable[[str], None]
) -> None:
    say(f"making an environment with {python}")
    _run([str(python), "-m", "venv", str(folder / "venv")], "the environment cannot be made")
    say(f"installing {', '.join(framework.requirements)} (some hundred MB, a few minutes)")
    pip = [str(folder / _PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    source = [str(folder / "source")] if framework.source_folders else []
    _run([*pip, *framework.requirements, *source], "the installation failed")


def _install_packages(framework: Framework, folder: Path, say: Callable[[str], None]) -> None:
    """Install npm packages without their scripts, which would look for programs of the host."""
    if shutil.which("npm") is None:
        raise UserError(
            f"{framework.name} needs npm, which is not installed; see https://nodejs.org"
        )
    arch = _ARCHITECTURES.get(platform.machine().lower())
    if arch is None:
        raise UserError(f"{framework.name} has no program for {platform.machine()} processors")
    packages = [
        text.format(arch=arch, version=framework.version) for text in (framework.npm, _NODE)
    ]
    say(f"installing {', '.join(packages)} (some hundred MB)")
    folder.mkdir()
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    options += ["--loglevel=error", "--os=linux", f"--cpu={arch}", "--libc=glibc"]
    _run(["npm", "install", *options, f"--prefix={folder}", *packages], "the installation failed")


def _copy_source(framework: Framework, source: str, target: Path) -> None:
    origin = Path(source).expanduser()
    if "://" in source or source.startswith("git@"):
        _run(
            ["git", "clone", "--quiet", "--depth=1", source, str(target)],
            f"{source} cannot be cloned",
        )
        origin = target
    # Check before copying: a wrong folder may be the whole home of the user.
    for name in ("pyproject.toml", *framework.source_folders):
        if not (origin / name).exists():
            raise UserError(
                f"--from {source} is not a source tree of {framework.name}: it has no {name}"
            )
    if origin != target:
        ignored = shutil.ignore_patterns(".venv", "__pycache__")
        shutil.copytree(origin, target, symlinks=True, ignore=ignored)


def _installed_version(folder: Path, framework: Framework) -> str:
    if framework.npm:
        if not (folder / "programs" / "node_modules").is_dir():
            raise UserError("its programs have been removed")
        return framework.version
    argv = [str(folder / _PYTHON), "-c", _VERSION_OF, framework.distribution]
    return _run(argv, "it cannot be used").strip()


def _run(argv: Sequence[str], problem: str = "") -> str:
    """Return the output of a command; UserError if it fails or cannot be run."""
    try:
        completed = subprocess.run(
            argv,
            timeout=_INSTALL_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip() or error.stdout.strip()).rpartition("\n")[2]
        raise UserError(f"{problem}: {printable(last_line)[:300]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{problem}: {error}") from error
    return completed.stdout
