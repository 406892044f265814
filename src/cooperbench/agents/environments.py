"""The environments of frameworks and command-line agents: which ones there are, how one is made and found.

`<data>/agents/NAME/` has a virtual environment (`venv`) or packages of npm (`programs`), for a framework without
releases its source, and `environment.json`. A new one is made beside its place and moved there once it is complete.
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
from typing import Any, ClassVar

from cooperbench.agents import llm
from cooperbench.agents.base import Agent
from cooperbench.errors import UserError
from cooperbench.storage import read_json, write_json
from cooperbench.temporary import remove_tree
from cooperbench.text import printable

DATA_VARIABLE = "COOPERBENCH_DATA_DIR"
_DESCRIPTION = "environment.json"
_PYTHON = "venv/bin/python"
_INSTALL_SECONDS = 3600
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_NODE = "node-linux-{arch}@22.23.3"
"""Beside every command-line agent, so that it needs nothing of the image."""
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_PYTHON_VERSION = "import sys, venv, ensurepip, ssl; print('%d.%d' % sys.version_info[:2])"
LITELLM = "litellm>=1.75.5,!=1.82.7,!=1.82.8,!=1.106.*"
"""1.106 fails on every call with tools unless `mcp` is installed."""


@dataclass(frozen=True)
class Framework:
    """One framework, as `cooperbench agents` installs it."""

    name: str
    distribution: str = ""
    """Whose version is shown."""
    pythons: tuple[str, ...] = ()
    """The versions of Python that it runs on, the best one first."""
    requirements: tuple[str, ...] = ()
    source_folders: tuple[str, ...] = ()
    """For one without a release: the user names its source, which must have these besides the package."""
    npm: str = ""
    """Of a command-line agent: the package, with its program for Linux, whatever the host is."""
    version: str = ""
    """Of that package: adapters know the options of this one."""

    @property
    def install_command(self) -> str:
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
    if name not in FRAMEWORKS:
        raise UserError(f"no framework {name!r}; there are: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


class Environment:
    """One that is installed."""

    def __init__(self, framework: Framework, folder: Path, description: dict[str, Any]) -> None:
        self.framework = framework
        self.folder = folder.resolve()
        self.description = description
        self.version = str(description["version"])
        self.python = self.folder / _PYTHON
        self.source = self.folder / "source"
        """Of a framework that has no release."""
        self.programs = self.folder / "programs"
        """Of a command-line agent: what sandboxes see as `PROGRAMS_DIR`."""


def environments_dir() -> Path:
    """In the folder for large things that the user asked for."""
    base = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(os.environ.get(DATA_VARIABLE) or Path(base) / "cooperbench") / "agents"


def find_environment(framework: Framework) -> Environment | None:
    """None where it is not installed."""
    folder = environments_dir() / framework.name
    description = read_json(folder / _DESCRIPTION)
    return Environment(framework, folder, description) if description else None


def get_environment(framework: Framework) -> Environment:
    found = find_environment(framework)
    if found is None:
        raise UserError(f"agent {framework.name!r} is not installed: {framework.install_command}")
    if framework.version not in ("", found.version):
        raise UserError(
            f"{framework.name} {found.version} is installed, and this CooperBench runs {framework.version}: "
            f"{framework.install_command}"
        )
    return found


class InstalledAgent(Agent):
    """An agent in an environment of its own, which asks its model through the gateway."""

    framework: ClassVar[str]
    """Its name in the table of frameworks."""
    warm_up = staticmethod(llm.warm_up_gateway)

    @classmethod
    def installed(cls) -> Environment:
        return get_environment(FRAMEWORKS[cls.framework])

    @classmethod
    def version(cls) -> str:
        return cls.installed().version


def install(
    framework: Framework, *, source: str | None, python: Path | None, say: Callable[[str], None]
) -> Environment:
    """Make a new environment; an earlier one stays until this one is complete."""
    if framework.source_folders and source is None:
        raise UserError(
            f"{framework.name} has no release to install: name its source tree or git URL, {framework.install_command}"
        )
    if source is not None and not framework.source_folders:
        raise UserError(f"{framework.name} is installed from its releases; --from is not for it")
    if framework.npm and python is not None:
        raise UserError(f"{framework.name} is no Python program; --python is not for it")
    interpreter = None if framework.npm else find_python(framework, python)
    place = environments_dir() / framework.name
    folder = place.with_name(f".{framework.name}-{os.urandom(4).hex()}")
    folder.mkdir(parents=True)
    try:
        if source is not None:
            say(f"taking the source from {source}")
            _take_source(framework, source, folder / "source")
        if interpreter is None:
            _install_packages(framework, folder / "programs", say)
        else:
            _make_venv(framework, folder, interpreter, say)
        description = {
            "version": _installed_version(folder, framework),
            "python": interpreter and str(interpreter),
            "size_bytes": sum(
                path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()
            ),
        }
        write_json(folder / _DESCRIPTION, description)
        remove_tree(place)
        # Only its `bin/python` is used, which also works where a virtual environment was moved to.
        folder.rename(place)
    except BaseException:
        remove_tree(folder)
        raise
    return Environment(framework, place, description)


def remove(framework: Framework) -> bool:
    """Whether there was anything; incomplete ones of killed installations go too."""
    home = environments_dir()
    present = [*home.glob(framework.name), *home.glob(f".{framework.name}-*")]
    for folder in present:
        remove_tree(folder)
    return bool(present)


def works(environment: Environment) -> bool:
    """Is it whole? An interpreter that was updated away takes a virtual environment along."""
    try:
        return bool(_installed_version(environment.folder, environment.framework))
    except UserError:
        return False


def find_python(framework: Framework, named: Path | None) -> Path:
    """The one that was named, else one of this machine, of a version that the framework runs on."""
    for candidate in [named] if named else _pythons(framework.pythons):
        try:
            if _output([str(candidate), "-I", "-c", _PYTHON_VERSION]).strip() in framework.pythons:
                return candidate
        except UserError:
            continue
    wanted = f"Python {' or '.join(framework.pythons)} with venv"
    if named:
        raise UserError(f"{named} is not a {wanted}, which {framework.name} needs")
    raise UserError(
        f"{framework.name} needs {wanted}, and none was found; install one, e.g. "
        f"`pyenv install {framework.pythons[0]}`, or name it with --python PATH"
    )


def _pythons(versions: Sequence[str]) -> Iterator[Path]:
    # The base of the one that runs us: a virtual environment that is removed must not take ours along.
    yield Path(getattr(sys, "_base_executable", sys.executable))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser()) / "versions"
    for version in versions:
        if found := shutil.which(f"python{version}"):
            yield Path(found)
        yield from sorted(pyenv.glob(f"{version}.*/bin/python"))


def _make_venv(
    framework: Framework, folder: Path, python: Path, say: Callable[[str], None]
) -> None:
    say(f"making an environment with {python}")
    _output([str(python), "-m", "venv", str(folder / "venv")], "the environment cannot be made")
    say(f"installing {', '.join(framework.requirements)} (some hundred MB, a few minutes)")
    pip = [str(folder / _PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    source = [str(folder / "source")] if framework.source_folders else []
    _output([*pip, *framework.requirements, *source], "the installation failed")


def _install_packages(framework: Framework, folder: Path, say: Callable[[str], None]) -> None:
    """Without their scripts, which would look for a program of the host's kind."""
    if shutil.which("npm") is None:
        raise UserError(
            f"{framework.name} is installed with npm, which is not here: https://nodejs.org"
        )
    arch = _ARCHITECTURES.get(platform.machine().lower())
    if arch is None:
        raise UserError(
            f"{framework.name} has no program for processors of the kind {platform.machine()}"
        )
    packages = [
        text.format(arch=arch, version=framework.version) for text in (framework.npm, _NODE)
    ]
    say(f"installing {', '.join(packages)} (some hundred MB)")
    folder.mkdir()
    options = [
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
    ]
    options += ["--os=linux", f"--cpu={arch}", "--libc=glibc", f"--prefix={folder}"]
    _output(["npm", "install", *options, *packages], "the installation failed")


def _take_source(framework: Framework, source: str, target: Path) -> None:
    origin = Path(source).expanduser()
    if "://" in source or source.startswith("git@"):
        _output(
            ["git", "clone", "--quiet", "--depth=1", source, str(target)],
            f"{source} cannot be cloned",
        )
        origin = target
    # Before the copying: another folder may be the user's whole home.
    for name in ("pyproject.toml", *framework.source_folders):
        if not (origin / name).exists():
            raise UserError(
                f"--from {source} is no source tree of {framework.name}: it has no {name}"
            )
    if origin != target:
        ignored = shutil.ignore_patterns(".venv", "__pycache__")
        shutil.copytree(origin, target, symlinks=True, ignore=ignored)


def _installed_version(folder: Path, framework: Framework) -> str:
    if framework.npm:
        if not (folder / "programs" / "node_modules").is_dir():
            raise UserError("its programs are gone")
        return framework.version
    asked = [str(folder / _PYTHON), "-c", _VERSION_OF, framework.distribution]
    return _output(asked, "it cannot be used").strip()


def _output(argv: Sequence[str], problem: str = "") -> str:
    """What a command prints; UserError where it cannot be run or fails."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        return str(subprocess.run(argv, timeout=_INSTALL_SECONDS, check=True, **options).stdout)
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip() or error.stdout.strip()).rpartition("\n")[2]
        raise UserError(f"{problem}: {printable(last_line)[:300]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{problem}: {error}") from error
