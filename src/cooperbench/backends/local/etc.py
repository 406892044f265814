"""The /etc of sandboxes that have the host's system: parts of the host's, and files of our own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

_GENERATED_ETC = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
    "nsswitch.conf": (
        "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
    ),
    "gitconfig": (
        "[user]\n\tname = Agent\n\temail = agent@cooperbench.invalid\n"
        "[init]\n\tdefaultBranch = main\n"
        "[safe]\n\tdirectory = *\n"
    ),
    "shells": "/bin/sh\n/bin/bash\n",
    "resolv.conf": "",
}
NETWORK_ETC = ("hosts", "resolv.conf")
"""Files of /etc that are copies of the host's if the sandbox has the network."""
_COPIED_ETC = (
    "bash.bashrc",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "gai.conf",
    "host.conf",
    "java*",
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
    "python3*",
    "services",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xattr.conf",
)
"""Files of /etc that are about the system and that everybody may read."""
_MOUNTED_ETC = ("alternatives", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs")
"""Public folders of /etc with hundreds of links: mounted, because copying takes too long."""


def write_etc(folder: Path) -> None:
    """Write the /etc of sandboxes. Files that others may not read on the host are left out."""
    folder.mkdir()
    etc = Path("/etc")
    names: list[str] = []
    for pattern in _COPIED_ETC:
        names += [str(path.relative_to(etc)) for path in etc.glob(pattern)]
    copy = ["cp", "-rL", "--preserve=mode", "--parents", "--", *names, str(folder)]
    remove_private = ["find", str(folder), "-type", "f", "-not", "-perm", "-004", "-delete"]
    for command in (copy, remove_private):
        subprocess.run(
            command, cwd="/etc", stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    for name, text in _GENERATED_ETC.items():
        (folder / name).write_text(text, "utf-8")
    for name in _MOUNTED_ETC:
        path, target = etc / name, folder / name
        if not path.is_dir():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.resolve() != path:
            target.symlink_to(path.resolve())
        else:
            target.mkdir(exist_ok=True)


def etc_folders() -> list[Path]:
    """Return the folders of /etc that are mounted; a link to a folder is copied with the rest."""
    folders = [Path("/etc", name) for name in _MOUNTED_ETC]
    return [folder for folder in folders if folder.is_dir() and folder.resolve() == folder]


def copy_network_etc(folder: Path) -> list[str]:
    """Copy the host's files about the network; return their names."""
    folder.mkdir()
    names: list[str] = []
    for name in NETWORK_ETC:
        with contextlib.suppress(OSError):
            shutil.copyfile(Path("/etc", name), folder / name)
            names.append(name)
    return names
