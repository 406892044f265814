"""The /etc of a local sandbox: made up where it names users and hosts, copied where it is about the system.

Only what everybody on this machine may read is copied, and only from the list below; no accounts, keys or services.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from cooperbench.backends.local.mounts import Bind, is_system_path

_MADE_UP = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "gitconfig": "[user]\n\tname = Agent\n\temail = agent@cooperbench.invalid\n[init]\n\tdefaultBranch = main\n"
    "[safe]\n\tdirectory = *\n",
    "shells": "/bin/sh\n/bin/bash\n",
}
_COPIED = (
    "bash.bashrc",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "gai.conf",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "pki/tls/openssl.cnf",
    "profile",
    "protocols",
    "services",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xattr.conf",
)
_SHOWN = ("alternatives", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs")
"""Folders with hundreds of links, public by their purpose: mounted, since copying them takes too long."""
_COPIED_PATTERNS = ("python3*", "java*")
_WITH_NETWORK = ("resolv.conf", "hosts")
_LARGEST_FILE = 8 * 1024 * 1024


def etc_mounts() -> list[Bind]:
    """What is mounted in a folder that `write_etc` has filled."""
    paths = (Path("/etc", name) for name in _SHOWN)
    return [Bind(path, str(path)) for path in paths if path.resolve() == path and path.is_dir()]


def write_etc(folder: Path, *, network: bool) -> None:
    """Fill an empty folder."""
    host = Path("/etc")
    for name, text in _MADE_UP.items():
        (folder / name).write_text(text, "utf-8")
    names = [*_COPIED, *(path.name for pattern in _COPIED_PATTERNS for path in host.glob(pattern))]
    for name in names:
        _copy(host / name, folder / name)
    for mount in etc_mounts():
        (folder / Path(mount.target).relative_to(host)).mkdir(parents=True, exist_ok=True)
    for name in _SHOWN:
        if (host / name).is_symlink():
            _copy(host / name, folder / name)
    if network:
        for name in _WITH_NETWORK:
            _copy_file((host / name).resolve(), folder / name)


def _copy(source: Path, target: Path) -> None:
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            _copy_link(source, target)
        elif stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o005 == 0o005:
                target.mkdir(parents=True, exist_ok=True)
                for entry in source.iterdir():
                    _copy(entry, target / entry.name)
        else:
            _copy_file(source, target)
    except OSError:
        return  # what cannot be read here is not to be had there either


def _copy_link(source: Path, target: Path) -> None:
    text = str(source.readlink())
    target.parent.mkdir(parents=True, exist_ok=True)
    real = source.resolve()
    if "/" not in text or real.is_dir():
        target.symlink_to(text)
    elif is_system_path(real):
        target.symlink_to(real)
    else:
        _copy_file(real, target)


def _copy_file(source: Path, target: Path) -> None:
    status = source.stat()
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size <= _LARGEST_FILE:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if status.st_mode & 0o111 else 0o644)
