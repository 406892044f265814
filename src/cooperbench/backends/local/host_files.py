"""What of this machine's files a sandbox may see beyond /usr: interpreters and compilers, and parts of /etc.

The Python that runs CooperBench and a node, git, cargo or go on the PATH often live in the user's home (pyenv, uv,
conda, nvm, rustup). Just their own folders are shown, read-only and at their own paths, and only if they look like an
installation of that tool and hold nothing else of the user's. A virtual environment is not shown: it holds the
harness, its libraries, and possibly the demo dataset with its golden patches.

The /etc of a sandbox is generated where it names users and hosts, and copied where it is about the system: only what
everybody on this machine may read, and only from a list; no accounts, keys or services.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

SYSTEM_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_ROOTS = ("/usr", "/nix/store", *(f"/{name}" for name in SYSTEM_NAMES))
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

_MARKERS = {
    "node": ("include/node", "lib/node_modules"),
    "git": ("libexec/git-core",),
    "go": ("pkg/tool", "src/runtime"),
    "cargo": ("lib/rustlib",),
}
"""A folder under the prefix that only an installation of this tool has."""
_RESERVED = (
    *("/workspace", "/patches", "/cooperbench"),
    *("/proc", "/dev", "/sys", "/etc", "/run", "/boot", "/var"),
)
_PRIVATE_NAMES = (".local", ".config", ".cache", ".cargo", ".ssh", ".gnupg", "bin")
"""Folders of a home that may be a tool's prefix but hold other things too."""

_GENERATED_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "gitconfig": "[user]\n\tname = Agent\n\temail = agent@cooperbench.invalid\n[init]\n\tdefaultBranch = main\n"
    "[safe]\n\tdirectory = *\n",
    "shells": "/bin/sh\n/bin/bash\n",
}
_COPIED_ETC = (
    *("bash.bashrc", "ca-certificates.conf", "crypto-policies", "debian_version", "gai.conf", "host.conf"),
    *(
        "java*",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "locale.alias",
        "localtime",
        "magic",
        "mime.types",
    ),
    *("os-release", "perl", "pki/tls/openssl.cnf", "profile", "protocols", "python3*", "services"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf"),
)
_MOUNTED_ETC = ("alternatives", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs")
"""Folders with hundreds of links, public by their purpose: mounted, since copying them takes too long."""
_LARGEST_ETC_FILE = 8 * 1024 * 1024


def is_system_path(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _SYSTEM_ROOTS)


def is_open_to_us(path: Path) -> bool:
    """Whether we get there without being root: in a sandbox's user namespace root has no rights over others' files."""
    return all(
        status.st_uid == os.geteuid() or status.st_mode & 0o001
        for status in (folder.stat() for folder in (path, *path.parents))
    )


@dataclass(frozen=True)
class HostTools:
    """What to show and where commands are found."""

    prefixes: tuple[Path, ...]
    path: tuple[str, ...]
    """Folders to search before those of the system."""
    python: Path | None
    """The interpreter for `python3` and `python`."""


def find_host_tools(private: tuple[Path, ...]) -> HostTools:
    """`private`: folders of ours that no prefix may contain."""
    python, prefix = _find_python(private)
    prefixes = [prefix] if prefix else []
    path = [str(prefix / "bin")] if prefix else []
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
    return HostTools(tuple(dict.fromkeys(prefixes)), tuple(dict.fromkeys(path)), python)


def _find_python(private: tuple[Path, ...]) -> tuple[Path | None, Path | None]:
    """The interpreter, and the prefix to show for it where it is not part of the system."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix).resolve()
    base_executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for executable in (prefix / "bin" / version, base_executable):
        if not executable.exists():
            continue
        if is_system_path(executable.resolve()):
            return executable, None
        is_installation = executable.is_relative_to(prefix) and (prefix / "lib" / version / "os.py").exists()
        if is_installation and _may_be_shown(prefix, private):
            return executable, prefix
    system = (Path(f"/usr/bin/python3.{minor}") for minor in range(sys.version_info.minor, 10, -1))
    return next((python for python in system if python.exists()), None), None


def _rust_toolchain() -> Path | None:
    """What rustup's `cargo` would run; ~/.cargo itself holds the user's credentials and is never shown."""
    home = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    try:
        name = tomllib.loads((home / "settings.toml").read_text("utf-8"))["default_toolchain"]
    except (OSError, ValueError, KeyError):
        return None
    return (home / "toolchains" / str(name)).resolve()


def _may_be_shown(prefix: Path, private: tuple[Path, ...]) -> bool:
    try:
        home = Path.home().resolve()
    except RuntimeError:
        home = Path("/root")
    if not is_open_to_us(prefix):
        return False
    if len(prefix.parts) < 3 or any(prefix.is_relative_to(reserved) for reserved in _RESERVED):
        return False
    if prefix in {home / name for name in _PRIVATE_NAMES}:
        return False
    return not any(path.resolve().is_relative_to(prefix) for path in (home, Path.cwd(), *private))


def mounted_etc() -> list[Path]:
    """Folders to be mounted in a folder that `write_etc` has filled."""
    paths = (Path("/etc", name) for name in _MOUNTED_ETC)
    return [path for path in paths if path.resolve() == path and path.is_dir()]


def write_etc(folder: Path, *, network: bool) -> None:
    """Fill an empty folder."""
    host = Path("/etc")
    for name, text in _GENERATED_ETC.items():
        (folder / name).write_text(text, "utf-8")
    mounted = mounted_etc()
    for path in (found for pattern in (*_COPIED_ETC, *_MOUNTED_ETC) for found in host.glob(pattern)):
        target = folder / path.relative_to(host)
        if path in mounted:
            target.mkdir(parents=True, exist_ok=True)
        else:
            _copy(path, target)
    if network:
        for name in ("resolv.conf", "hosts"):
            _copy((host / name).resolve(), folder / name)


def _copy(source: Path, target: Path) -> None:
    """What everybody may read; links into the system and to folders stay links."""
    try:
        status, real = source.stat(), source.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and (is_system_path(real) or real.is_dir()):
            target.symlink_to(real)
        elif stat.S_ISDIR(status.st_mode) and status.st_mode & 0o005 == 0o005:
            target.mkdir(exist_ok=True)
            for entry in source.iterdir():
                _copy(entry, target / entry.name)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size <= _LARGEST_ETC_FILE:
            shutil.copyfile(source, target)
            target.chmod(0o755 if status.st_mode & 0o111 else 0o644)
    except OSError:
        return  # what cannot be read here is not to be had there either
