"""What one sandbox sees, as mounts for bubblewrap: the system, tools of the host, its own folders, its task.

The root is a folder of the sandbox's own on the disk; everything of the host is mounted on it read-only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import cooperbench
from cooperbench.errors import SandboxError
from cooperbench.sandbox import sandbox_script
from cooperbench.sandbox.contract import PROGRAMS_DIR, SandboxOptions

IO_DIR = "/cooperbench/io"
LIB_DIR = "/cooperbench/lib"
SCRATCH_DIR = "/cooperbench/scratch"
SHELL = f"{LIB_DIR}/cooperbench-io"
"""bash under a name of our own, so that `pkill bash` ends the agent's shells and not the harness's. It may be run but
not read: the kernel then lets nobody inside look into its processes or at what they have open."""
View = tuple[list[str], list[list[Path]]]
"""What a sandbox sees and may reach: bubblewrap's arguments, and folders that become file systems of their own, each
with what lies below it; only the first of them can be written to."""
SYSTEM_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SYSTEM_ROOTS = ("/usr", "/nix/store", *(f"/{name}" for name in SYSTEM_NAMES))
_OWN_FOLDERS = (
    "workspace",
    "patches",
    "tmp",
    "var/tmp",
    "root",
    "home",
    "run",
    "opt",
    "cooperbench/bin",
)
_BIN_DIRS = ("/cooperbench/bin", f"{LIB_DIR}/bin")
_ENV = {
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Only one user exists inside: unpacking must not try to give files to others.
    "TAR_OPTIONS": "--no-same-owner",
}
_SHARED_MEMORY_BYTES = 2 * 1024**3
_LOCAL_BIN = Path("/usr/local/bin")
_HOST_LOCAL_BIN = "/cooperbench/host-bin"

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
    "resolv.conf": "",
}
_NETWORK_ETC = ("/etc/hosts", "/etc/resolv.conf")
"""The host's, where the network is."""
_COPIED_ETC = (
    *(
        "bash.bashrc",
        "ca-certificates.conf",
        "crypto-policies",
        "debian_version",
        "gai.conf",
        "host.conf",
    ),
    *("java*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic"),
    *(
        "mime.types",
        "os-release",
        "perl",
        "pki/tls/openssl.cnf",
        "profile",
        "protocols",
        "python3*",
    ),
    *("services", "ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf"),
)
"""What is about the system and everybody may read."""
_MOUNTED_ETC = ("alternatives", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs")
"""Folders with hundreds of links, public by their purpose: mounted, since copying them takes too long."""

_HIDDEN_PROC = (
    "cmdline",
    "kcore",
    "key-users",
    "keys",
    "modules",
    "sched_debug",
    "swaps",
    "timer_list",
)
"""What tells of the host's users, disks and devices; besides, everything is hidden that could be written to."""
_COPIED_SYSCTL = (
    *("fs/file-max", "fs/nr_open", "fs/pipe-max-size", "fs/inotify/max_user_watches"),
    *(
        "kernel/cap_last_cap",
        "kernel/ngroups_max",
        "kernel/osrelease",
        "kernel/ostype",
        "kernel/pid_max",
    ),
    *("kernel/overflowgid", "kernel/overflowuid", "kernel/threads-max", "kernel/version"),
    *("net/core/somaxconn", "vm/max_map_count", "vm/overcommit_memory"),
)
"""The rest of /proc/sys is not there. Root inside is root outside where the harness runs as root, if without any
capability: that is enough to write to kernel/core_pattern, and through it to run a program on the host."""
_RANDOM_UUID = "/proc/sys/kernel/random/uuid"


@dataclass(frozen=True)
class Content:
    """What a sandbox is filled with."""

    layers: tuple[Path, ...] = ()
    """Folders of a template, seen in / and changed without changing the template."""
    writable: tuple[tuple[Path, str], ...] = ()
    """Folders that are changed in place, and where they are seen: for making a template."""
    runner: Path | None = None
    base_git: Path | None = None


def read_only(source: Path, target: str | None = None) -> list[str]:
    return ["--ro-bind", str(source), target or str(source)]


def _hidden(folder: Path) -> list[str]:
    return ["--size", "4096", "--tmpfs", str(folder), "--remount-ro", str(folder)]


def _system_mounts(root: Path) -> list[str]:
    """The operating system: /usr and what belongs to it. Links such as /bin are made in `root`, a sandbox's."""
    words: list[str] = []
    for path in map(Path, _SYSTEM_ROOTS):
        if path.name in SYSTEM_NAMES and path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            words += read_only(path)
    return words


class RootFsBuilder:
    """Makes file systems of sandboxes. Holds what all sandboxes of a process share, in the process's run folder."""

    def __init__(self, run_folder: Path, private: tuple[Path, ...]) -> None:
        self.run_folder = run_folder
        self._folder = Path(mkdtemp(dir=run_folder))
        self._private = (run_folder, *private)
        self._tools = find_host_tools(self._private)
        self.tools_proven = False
        """A channel has found that the tools inside do what it needs; they are the same in every sandbox."""
        self._write_lib(self._folder / "lib")
        self._proc = _proc_mounts(self._folder)
        _write_etc(self._folder / "etc")

    def _write_lib(self, lib: Path) -> None:
        (lib / "bin").mkdir(parents=True)
        (lib / "channel.sh").write_text(sandbox_script("channel.sh"), "utf-8")
        supervisor = resources.files(__package__).joinpath("supervisor.sh")
        (lib / "supervisor.sh").write_bytes(supervisor.read_bytes())
        bash = shutil.which("bash", path=os.pathsep.join(SYSTEM_PATH))
        if bash is None:
            raise SandboxError("the local backend needs bash in /usr/bin or /bin")
        shutil.copyfile(bash, lib / Path(SHELL).name)
        (lib / Path(SHELL).name).chmod(0o111)
        if self._tools.python is not None:
            for name in ("python3", "python"):
                (lib / "bin" / name).symlink_to(self._tools.python)

    def build(
        self, folder: Path, content: Content, options: SandboxOptions, *, overlays: bool
    ) -> View:
        """Make a sandbox's own files in `folder`."""
        root = folder / "root"
        for name in _OWN_FOLDERS:
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        for name in ("io", "work"):
            (folder / name).mkdir()
        words = ["--share-net"] if options.network == "public" else []
        env = {"PATH": ":".join((*_BIN_DIRS, *self._tools.path, *SYSTEM_PATH)), **_ENV}
        for name, value in env.items():
            words += ["--setenv", name, value]
        words += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
        words += ["--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
        words += ["--remount-ro", "/dev", *_system_mounts(root), *self._proc]
        words += read_only(self._folder / "etc", "/etc")
        if options.network == "public":
            words += [word for path in _NETWORK_ETC for word in ("--ro-bind-try", path, path)]
        for path in (Path("/etc", name) for name in _MOUNTED_ETC):
            if path.resolve() == path and path.is_dir():
                words += read_only(path)
        for layer in () if overlays else content.layers:
            copy_tree(layer, root)
        for source, target in content.writable:
            words += ["--bind", str(source), target]
        for prefix in self._tools.prefixes:
            words += read_only(prefix)
        for private in self._hidden_folders():
            words += _hidden(private)
        words += [*read_only(self._folder / "lib", LIB_DIR), *read_only(folder / "io", IO_DIR)]
        ours = [self._folder]
        if content.runner is not None:
            words += _with_runner(folder / "local-bin", content.runner)
            ours.append(folder / "local-bin")
        for shown, target in (
            (options.programs, PROGRAMS_DIR),
            (content.base_git, "/cooperbench/base.git"),
        ):
            if shown is not None:
                words += read_only(shown, target)
                ours.append(shown)
        empty = folder / "io"  # there have to be two layers
        layers = [[root, *content.layers, empty], *([path, empty] for path in ours)]
        return [*words, "--chdir", "/"], layers if overlays else []

    def _hidden_folders(self) -> list[Path]:
        """Ourselves (with the demo's golden patches), datasets and caches, where they lie in what is shown."""
        private = (
            Path(cooperbench.__file__).resolve().parent,
            *(path.resolve() for path in self._private),
        )
        return [
            path
            for path in private
            if path.is_dir()
            and (
                is_system_path(path)
                or any(path.is_relative_to(prefix) for prefix in self._tools.prefixes)
            )
        ]


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in a folder with everything that belongs to it, sharing blocks where the file system can."""
    command = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SandboxError(
            f"cannot copy a task's workspace: {reason[-1] if reason else 'cp failed'}"
        )


def _with_runner(folder: Path, runner: Path) -> list[str]:
    """/usr/local/bin as on the host, and in it the task's runner.sh."""
    if not _LOCAL_BIN.is_dir():
        raise SandboxError(
            f"the local backend needs {_LOCAL_BIN} on this machine; an empty folder will do"
        )
    folder.mkdir()
    shutil.copyfile(runner, folder / "runner.sh")
    (folder / "runner.sh").chmod(0o755)
    for entry in _LOCAL_BIN.iterdir():
        if entry.name != "runner.sh":
            text = entry.readlink() if entry.is_symlink() else f"{_HOST_LOCAL_BIN}/{entry.name}"
            (folder / entry.name).symlink_to(text)
    return [*read_only(_LOCAL_BIN, _HOST_LOCAL_BIN), *read_only(folder, str(_LOCAL_BIN))]


def _proc_mounts(folder: Path) -> list[str]:
    """What is laid over /proc; made in `folder`."""
    settings, empty = folder / "proc-sys", folder / "empty"
    empty.touch()
    for name in (*_COPIED_SYSCTL, "kernel/random/uuid"):
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            (settings / name).write_bytes(Path("/proc/sys", name).read_bytes())
    words = [*read_only(settings, "/proc/sys"), *read_only(Path(_RANDOM_UUID))]
    for path in sorted(Path("/proc").iterdir()):
        if path.name.isdigit() or path.name == "sys" or path.is_symlink():
            continue
        if path.name in _HIDDEN_PROC or _we_can_write(path):
            words += _hidden(path) if path.is_dir() else read_only(empty, str(path))
    return words


def _we_can_write(path: Path) -> bool:
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return any(_we_can_write(entry) for entry in path.iterdir())
    except OSError:
        return False
    bits = 0o202 if status.st_uid == os.geteuid() else 0o002
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & bits)


def is_system_path(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _SYSTEM_ROOTS)


def is_open_to_us(path: Path) -> bool:
    """Whether we get there without being root: in a sandbox's user namespace root has no rights over others' files."""
    return all(
        status.st_uid == os.geteuid() or status.st_mode & 0o001
        for status in (folder.stat() for folder in (path, *path.parents))
    )


class HostTools(NamedTuple):
    prefixes: tuple[Path, ...]
    """Folders to show."""
    path: tuple[str, ...]
    """Folders to search for commands before those of the system."""
    python: Path | None
    """The interpreter for `python3` and `python`."""


def find_host_tools(private: tuple[Path, ...]) -> HostTools:
    """Those that live outside of the system's folders, often in the user's home (pyenv, uv, conda, nvm, rustup).

    Just their own folders, and only if they look like an installation of that tool and hold nothing else of the user's.
    `private`: our folders, which no prefix may contain.
    """
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
    """The interpreter, and the prefix to show for it where it is not part of the system.

    Never a virtual environment: it holds the harness and perhaps golden patches.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix).resolve()
    base_executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for executable in (prefix / "bin" / version, base_executable):
        if not executable.exists():
            continue
        if is_system_path(executable.resolve()):
            return executable, None
        is_installation = (
            executable.is_relative_to(prefix) and (prefix / "lib" / version / "os.py").exists()
        )
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
    home = Path("~").expanduser().resolve()
    if len(prefix.parts) < 3 or any(prefix.is_relative_to(reserved) for reserved in _RESERVED):
        return False
    if prefix in {home / name for name in _PRIVATE_NAMES} or not is_open_to_us(prefix):
        return False
    return not any(path.resolve().is_relative_to(prefix) for path in (home, Path.cwd(), *private))


def _write_etc(folder: Path) -> None:
    """What cannot be read here is not to be had there either."""
    folder.mkdir()
    found = [
        str(path.relative_to("/etc")) for name in _COPIED_ETC for path in Path("/etc").glob(name)
    ]
    copy = ["cp", "-rL", "--preserve=mode", "--parents", "--", *found, str(folder)]
    remove = ["find", str(folder), "-type", "f", "-not", "-perm", "-004", "-delete"]
    for command in (copy, remove):
        subprocess.run(
            command, cwd="/etc", stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    for name, text in _GENERATED_ETC.items():
        (folder / name).write_text(text, "utf-8")
    for name in _MOUNTED_ETC:
        path, target = Path("/etc", name), folder / name
        if path.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve()) if path.resolve() != path else target.mkdir(
                exist_ok=True
            )
