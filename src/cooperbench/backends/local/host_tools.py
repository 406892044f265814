"""Finding tools of the host (Python, Node, git, Go, Rust) that sandboxes may see.

Tools in the system's folders are visible anyway. Others often live in the user's home (pyenv, uv,
conda, nvm, rustup) and are shown only if nothing private is shown with them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

SYSTEM_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SYSTEM_ROOTS = ("/usr", "/nix/store", *(f"/{name}" for name in SYSTEM_NAMES))

_INSTALLATION_MARKERS = {
    "node": ("include/node", "lib/node_modules"),
    "git": ("libexec/git-core",),
    "go": ("pkg/tool", "src/runtime"),
    "cargo": ("lib/rustlib",),
}
"""Folders under a prefix that only an installation of this tool has."""
_RESERVED_FOLDERS = (
    "/workspace",
    "/patches",
    "/cooperbench",
    "/proc",
    "/dev",
    "/sys",
    "/etc",
    "/run",
    "/boot",
    "/var",
)
_PRIVATE_HOME_FOLDERS = (".local", ".config", ".cache", ".cargo", ".ssh", ".gnupg", "bin")
"""Folders of a home that may be a tool's prefix but hold other things too."""
_OLDEST_PYTHON_MINOR = 11


class HostTools(NamedTuple):
    """Tools outside of the system's folders that sandboxes see."""

    prefixes: tuple[Path, ...]
    """Folders to show."""
    path: tuple[str, ...]
    """Folders to search for commands before those of the system."""
    python: Path | None
    """Interpreter for `python3` and `python`."""


def is_system_path(path: Path) -> bool:
    """Return whether a path belongs to the operating system, which sandboxes see."""
    return any(path.is_relative_to(root) for root in SYSTEM_ROOTS)


def is_open_to_us(path: Path) -> bool:
    """Return whether this user may enter a folder without being root.

    In the user namespace of a sandbox, root has no rights over files of other users.
    """
    for folder in (path, *path.parents):
        status = folder.stat()
        may_enter = status.st_uid == os.geteuid() or status.st_mode & 0o001
        if not may_enter:
            return False
    return True


def find_host_tools(private: tuple[Path, ...]) -> HostTools:
    """Find tools whose own folders can be shown.

    A folder is shown only if it looks like an installation of the tool and contains neither the
    user's home nor the `private` folders of CooperBench.
    """
    python, python_prefix = _find_python(private)
    prefixes: list[Path] = []
    path: list[str] = []
    if python_prefix is not None:
        prefixes.append(python_prefix)
        path.append(str(python_prefix / "bin"))
    for tool in _INSTALLATION_MARKERS:
        executable = shutil.which(tool)
        if executable is None:
            continue
        real_executable = Path(executable).resolve()
        if is_system_path(real_executable):
            folder = real_executable.parent
            if str(folder) not in SYSTEM_PATH and (folder / tool).exists():
                path.append(str(folder))
            continue
        prefix = _find_prefix(tool, real_executable, private)
        if prefix is not None:
            prefixes.append(prefix)
            path.append(str(prefix / "bin"))
    return HostTools(tuple(dict.fromkeys(prefixes)), tuple(dict.fromkeys(path)), python)


def _find_prefix(tool: str, executable: Path, private: tuple[Path, ...]) -> Path | None:
    """Return the prefix under which a tool is installed, if it can be shown."""
    prefix = _rust_toolchain() if tool == "cargo" else executable.parent.parent
    if prefix is None or not (prefix / "bin" / tool).exists():
        return None
    is_installation = any((prefix / marker).is_dir() for marker in _INSTALLATION_MARKERS[tool])
    if is_installation and _may_be_shown(prefix, private):
        return prefix
    return None


def _find_python(private: tuple[Path, ...]) -> tuple[Path | None, Path | None]:
    """Return a Python interpreter, and the prefix to show for it unless it is part of the system.

    It is never a virtual environment: that holds CooperBench and perhaps golden patches.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix).resolve()
    # This attribute is not documented, but venv relies on it.
    base_executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for executable in (prefix / "bin" / version, base_executable):
        if not executable.exists():
            continue
        if is_system_path(executable.resolve()):
            return executable, None
        has_library = (prefix / "lib" / version / "os.py").exists()
        is_installation = executable.is_relative_to(prefix) and has_library
        if is_installation and _may_be_shown(prefix, private):
            return executable, prefix
    return _find_system_python(), None


def _find_system_python() -> Path | None:
    """Return the newest Python of the system that is not newer than this one."""
    for minor in range(sys.version_info.minor, _OLDEST_PYTHON_MINOR - 1, -1):
        python = Path(f"/usr/bin/python3.{minor}")
        if python.exists():
            return python
    return None


def _rust_toolchain() -> Path | None:
    """Return the toolchain that rustup's `cargo` would run.

    The folder ~/.cargo itself holds the user's credentials and is never shown.
    """
    home = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    try:
        settings = tomllib.loads((home / "settings.toml").read_text("utf-8"))
        name = settings["default_toolchain"]
    except (OSError, ValueError, KeyError):
        return None
    return (home / "toolchains" / str(name)).resolve()


def _may_be_shown(prefix: Path, private: tuple[Path, ...]) -> bool:
    home = Path("~").expanduser().resolve()
    is_too_general = len(prefix.parts) < 3
    if is_too_general or any(prefix.is_relative_to(folder) for folder in _RESERVED_FOLDERS):
        return False
    if prefix in {home / name for name in _PRIVATE_HOME_FOLDERS}:
        return False
    if not is_open_to_us(prefix):
        return False
    hidden_folders = (home, Path.cwd(), *private)
    return not any(folder.resolve().is_relative_to(prefix) for folder in hidden_folders)
