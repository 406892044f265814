"""Which interpreters and compilers of this machine a sandbox gets, beyond what lies in /usr.

The Python that runs CooperBench and a node, git, cargo or go on the PATH often live in the user's home (pyenv, uv,
conda, nvm, rustup). Just their own folders are shown, read-only and at their own paths, and only if they look like an
installation of that tool and hold nothing else of the user's. A virtual environment is not shown: it holds the
harness, its libraries, and possibly the demo dataset with its golden patches.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cooperbench.backends.local.mounts import is_open_to_us, is_system_path

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MARKERS = {
    "node": ("include/node", "lib/node_modules"),
    "git": ("libexec/git-core",),
    "go": ("pkg/tool", "src/runtime"),
    "cargo": ("lib/rustlib",),
}
"""A folder under the prefix that only an installation of this tool has."""
_RESERVED = (
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
_PRIVATE_NAMES = (".local", ".config", ".cache", ".cargo", ".ssh", ".gnupg", "bin")
"""Folders of a home that may be a tool's prefix but hold other things too."""


@dataclass(frozen=True)
class HostTools:
    """What to show and where commands are found."""

    prefixes: tuple[Path, ...]
    path: tuple[str, ...]
    """Folders to search before those of the system."""
    links: tuple[tuple[str, Path], ...]
    """Commands that must be found under these names, e.g. `python3`."""


def find_host_tools(private: tuple[Path, ...]) -> HostTools:
    """`private`: folders of ours that no prefix may contain."""
    prefixes: list[Path] = []
    path: list[str] = []
    links: list[tuple[str, Path]] = []
    python = _python(private)
    if python is not None:
        executable, prefix = python
        links = [("python3", executable), ("python", executable)]
        if prefix is not None:
            prefixes.append(prefix)
            path.append(str(prefix / "bin"))
    for tool, markers in _MARKERS.items():
        found = shutil.which(tool)
        if found is None:
            continue
        real = Path(found).resolve()
        if is_system_path(real):
            if str(real.parent) not in SYSTEM_PATH and (real.parent / tool).exists():
                path.append(str(real.parent))
            continue
        candidate = _rust_toolchain() if tool == "cargo" else real.parent.parent
        if (
            candidate is not None
            and (candidate / "bin" / tool).exists()
            and any((candidate / marker).is_dir() for marker in markers)
            and _may_be_shown(candidate, private)
        ):
            prefixes.append(candidate)
            path.append(str(candidate / "bin"))
    return HostTools(tuple(dict.fromkeys(prefixes)), tuple(dict.fromkeys(path)), tuple(links))


def _python(private: tuple[Path, ...]) -> tuple[Path, Path | None] | None:
    """The interpreter, and the prefix to show for it; None where neither ours nor the system's will do."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix).resolve()
    for executable in (
        prefix / "bin" / version,
        Path(getattr(sys, "_base_executable", sys.executable)).resolve(),
    ):
        if not executable.exists():
            continue
        if is_system_path(executable.resolve()):
            return executable, None
        if (
            executable.is_relative_to(prefix)
            and (prefix / "lib" / version / "os.py").exists()
            and _may_be_shown(prefix, private)
        ):
            return executable, prefix
    for minor in range(sys.version_info.minor, 10, -1):
        system_python = Path(f"/usr/bin/python3.{minor}")
        if system_python.exists():
            return system_python, None
    return None


def _rust_toolchain() -> Path | None:
    """What rustup's `cargo` would run; ~/.cargo itself holds the user's credentials and is never shown."""
    home = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    try:
        name = tomllib.loads((home / "settings.toml").read_text("utf-8"))["default_toolchain"]
    except (OSError, ValueError, KeyError):
        return None
    return (home / "toolchains" / str(name)).resolve()


def _may_be_shown(prefix: Path, private: tuple[Path, ...]) -> bool:
    home = _home()
    if not is_open_to_us(prefix):
        return False
    if len(prefix.parts) < 3 or any(prefix.is_relative_to(reserved) for reserved in _RESERVED):
        return False
    if prefix in {home / name for name in _PRIVATE_NAMES}:
        return False
    return not any(path.resolve().is_relative_to(prefix) for path in (home, Path.cwd(), *private))


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return Path("/root")
