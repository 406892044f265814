#!/usr/bin/env python3
"""A bare Debian 12 machine for `.ci/run`: only Python, git and make, and a regular user.

    bare_machine.py create FOLDER               copy this checkout into a machine in FOLDER
    bare_machine.py run FOLDER COMMAND...       run a command in the copy, without a network
    bare_machine.py install FOLDER COMMAND...   the same with a network, for the package index

The home directory of the user is read-only. The root filesystem is made with debootstrap and kept
in /var/cache. It is entered with bubblewrap, which uses pivot_root: inside a chroot nobody could
create the user namespaces that local sandboxes are made of. Needs root.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

RELEASE = "bookworm"
PACKAGES = ("python3", "python3-venv", "git", "make", "ca-certificates")
ROOTFS = Path("/var/cache/cooperbench-ci") / f"{RELEASE}-2"
"""The number changes with what is installed."""
DEFAULT_MIRROR = "http://deb.debian.org/debian"
USER_ID = 1000
HOME = "/home/tester"
CHECKOUT = "/checkout"
PATH = "/usr/local/bin:/usr/bin:/bin"
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def find_mirror() -> str:
    """Return the mirror that apt of this machine uses for the release."""
    fields = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    targets = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for line in targets.splitlines():
        uri, _, suite = line.partition(" ")
        if suite == f"{RELEASE} main":
            return uri
    return DEFAULT_MIRROR


def build_rootfs() -> None:
    """Build the root filesystem, whole or not at all."""
    ROOTFS.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="new-", dir=ROOTFS.parent))
    packages = f"--include={','.join(PACKAGES)}"
    command = ["debootstrap", "--variant=minbase", packages, RELEASE, str(unfinished)]
    try:
        subprocess.run([*command, find_mirror()], check=True, stdout=subprocess.DEVNULL)
        with (unfinished / "etc/passwd").open("a") as users:
            users.write(f"tester:x:{USER_ID}:{USER_ID}::{HOME}:/bin/bash\n")
        with (unfinished / "etc/group").open("a") as groups:
            groups.write(f"tester:x:{USER_ID}:\n")
        (unfinished / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        # It belongs to root, so that the user cannot write to it.
        (unfinished / HOME.lstrip("/")).mkdir(parents=True)
        (unfinished / CHECKOUT.lstrip("/")).mkdir()
        unfinished.chmod(0o755)
        unfinished.rename(ROOTFS)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def copy_checkout(folder: Path) -> None:
    """Copy the files of this checkout that git knows or would add, owned by the regular user."""
    checkout = folder / "checkout"
    checkout.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    for name in os.fsdecode(listed.stdout).split("\0"):
        source = Path(name)
        if name and (source.is_symlink() or source.is_file()):
            target = checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    subprocess.run(["chown", "-R", f"{USER_ID}:{USER_ID}", str(checkout)], check=True)


def read_pip_settings() -> dict[str, str]:
    """Return the settings of pip on this machine, from its files and from the environment."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        command = [f"{scratch}/bin/pip", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def find_index_folders(pip_settings: dict[str, str]) -> set[Path]:
    """Return the folders of this machine that pip finds packages in."""
    folders = set()
    for name in ("index-url", "extra-index-url", "find-links"):
        for address in pip_settings.get(name, "").split():
            path = Path(urlsplit(address).path)
            if urlsplit(address).scheme not in ("", "file") or not path.is_absolute():
                continue
            if path.name == "simple":
                # The pages of an index link to files beside it.
                path = path.parent
            if path.exists():
                folders.add(path)
    return folders


def create(folder: Path) -> None:
    """Prepare a machine in a new folder."""
    if not ROOTFS.is_dir():
        build_rootfs()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    temporary = folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    copy_checkout(folder)
    settings = read_pip_settings()
    lines = [f"{name} = {' '.join(value.split())}\n" for name, value in settings.items()]
    (folder / "pip.conf").write_text("[global]\n" + "".join(lines))
    index_folders = sorted(str(path) for path in find_index_folders(settings))
    (folder / "index_folders").write_text("\n".join(index_folders))


def bind(path: str) -> list[str]:
    """Return the arguments that show a path of this machine; create its mount point."""
    mount_point = ROOTFS / path.lstrip("/")
    if Path(path).is_dir():
        mount_point.mkdir(parents=True, exist_ok=True)
    elif not mount_point.exists():
        mount_point.parent.mkdir(parents=True, exist_ok=True)
        mount_point.touch()
    return ["--ro-bind", path, path]


def network_arguments(folder: Path) -> list[str]:
    """Return the arguments that let pip reach the package index of this machine."""
    arguments = ["--ro-bind", str(folder / "pip.conf"), "/run/pip.conf"]
    arguments += ["--setenv", "PIP_CONFIG_FILE", "/run/pip.conf"]
    shown = ["/etc/resolv.conf", *(folder / "index_folders").read_text().split("\n")]
    shown += [os.environ.get(name, "") for name in CERTIFICATE_VARIABLES]
    for path in shown:
        if path and Path(path).exists():
            arguments += bind(path)
    for name, value in os.environ.items():
        carried = name in (*CERTIFICATE_VARIABLES, *PROXY_VARIABLES)
        if carried or (name.startswith("PIP_") and name != "PIP_CONFIG_FILE"):
            arguments += ["--setenv", name, value]
    return arguments


def enter(folder: Path, command: list[str], *, network: bool) -> int:
    """Run a command in the machine as its regular user; return its exit status."""
    arguments = ["--unshare-all", "--die-with-parent", "--clearenv", "--ro-bind", str(ROOTFS), "/"]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
    arguments += ["--tmpfs", "/run", "--bind", str(folder / "checkout"), CHECKOUT]
    arguments += ["--bind", str(folder / "tmp"), "/tmp"]  # noqa: S108 (the machine's own folder)
    variables = {"HOME": HOME, "USER": "tester", "PATH": PATH, "LANG": "C.UTF-8", "CI": "true"}
    for name, value in variables.items():
        arguments += ["--setenv", name, value]
    arguments += ["--chdir", CHECKOUT]
    if network:
        arguments += ["--share-net", *network_arguments(folder)]
    become = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups"]
    full_command = [*become, "bwrap", *arguments, "--", *command]
    return subprocess.run(full_command, check=False, stdin=subprocess.DEVNULL).returncode


def main() -> int:
    """Run one of the actions that the module names."""
    action, folder, *command = sys.argv[1:]
    if action == "create":
        create(Path(folder))
        return 0
    return enter(Path(folder), command, network=action == "install")


if __name__ == "__main__":
    sys.exit(main())
