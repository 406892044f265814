"""Ways out of a local sandbox, each tried for real. Also a program: prints what succeeded, as JSON.

Usage: python -m tests.support.sandbox.escape CACHE_DIR HOME_SECRET_FILE
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.backends.local import LocalBackend
from cooperbench.sandbox.contract import SandboxOptions

if TYPE_CHECKING:
    from cooperbench.sandbox.contract import Sandbox

SECRET_VARIABLE = "COOPERBENCH_TEST_SECRET"
SECRET = "hunter2-only-on-the-host"
CONNECT_ABSTRACT = (
    'import os, socket; socket.socket(socket.AF_UNIX).connect(chr(0) + os.environ["ABSTRACT"])'
)
REACH_PORT = "exec 3<>/dev/tcp/127.0.0.1/$PORT && read -r line <&3 && [[ $line == hello ]]"


def python(*lines: str) -> str:
    """For bash: a program, which succeeds if it comes to its end."""
    numbers = {
        "x86_64": {
            "keyctl": 250,
            "unshare": 272,
            "perf_event_open": 298,
            "bpf": 321,
            "userfaultfd": 323,
            "kcmp": 312,
        },
        "aarch64": {
            "keyctl": 219,
            "unshare": 97,
            "perf_event_open": 241,
            "bpf": 280,
            "userfaultfd": 282,
            "kcmp": 272,
        },
    }[platform.machine()]
    numbers.update(io_uring_setup=425, pidfd_getfd=438)
    head = "import ctypes, mmap, platform, socket, sys"
    library = f"libc = ctypes.CDLL(None, use_errno=True); NUMBERS = {numbers}"
    return f"python3 -c {shlex.quote(chr(10).join((head, library, *lines)))}"


# Each succeeds (exit code 0) only if it gets somewhere that it must not get.
ATTEMPTS = {
    "remount /usr writable": "mount -o remount,rw,bind /usr && touch /usr/cooperbench-escaped",
    "remount /proc/sys writable": "mount -o remount,rw,bind /proc/sys",
    "unmount /proc/sys": "umount /proc/sys || umount -l /proc/sys",
    "unmount /usr": "umount -l /usr",
    "write to /usr": "touch /usr/cooperbench-escaped || touch /usr/local/bin/cooperbench-escaped",
    "write to /etc": "touch /etc/cooperbench-escaped || echo x >>/etc/passwd",
    "write to a library": "f=$(readlink -f /bin/true) && chmod u+w $f",
    "mount a tmpfs": "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m",
    "mount by bind": "mkdir -p /tmp/m && mount --bind /usr /tmp/m",
    "mount proc again": "mkdir -p /tmp/m && mount -t proc proc /tmp/m",
    "a user namespace": "unshare -U true",
    "a user namespace as root": "unshare -Ur true",
    "a mount namespace": "unshare -m true",
    "a block device": "mknod /tmp/disk b 8 0",
    "a memory device": "mknod /tmp/mem c 1 1",
    "chroot": "chroot / true",
    "set the core pattern": "echo '|/tmp/x' >/proc/sys/kernel/core_pattern",
    "change a sysctl": "echo 1 >/proc/sys/vm/drop_caches || echo 0 >/proc/sys/kernel/randomize_va_space",
    "sysrq": "echo h >/proc/sysrq-trigger",
    "anything writable in /proc": "find /proc -writable -not -path '/proc/[0-9]*' -not -path '/proc/self*' "
    "-not -path '/proc/thread-self*' 2>/dev/null | grep .",
    "change the host's /dev/null": "chmod 666 /dev/null",
    "add a device folder": "touch /dev/cooperbench",
    "see /sys": "ls /sys/kernel",
    "see the harness": 'grep -aq python "/proc/$HARNESS_PID/cmdline"',
    "signal the harness": 'kill -0 "$HARNESS_PID"',
    "trace the first process": python("sys.exit(libc.ptrace(16, 1, 0, 0))"),
    "be traced": python("sys.exit(libc.ptrace(0, 0, 0, 0))"),
    "read the first process's memory": "head -c 1 /proc/1/mem || cat /proc/1/maps /proc/1/environ",
    "write to the first process's memory": "exec 3<>/proc/1/mem",
    # Not if it has become split(1) meanwhile, which has nothing but a command's output.
    "open what the harness has open": "for fd in $(grep -l cooperbench-io /proc/[0-9]*/comm); do "
    "for fd in ${fd%comm}fd/*; do { (exec 3<$fd) || (exec 3>$fd); } && grep -q cooperbench-io ${fd%fd/*}comm && exit; "
    "done; done; exit 1",
    "open the program of the first process": "exec 3</proc/1/exe || exec 3<>/proc/1/exe",
    "see where the first process is": "ls /proc/1/root/ /proc/1/cwd/ || readlink /proc/1/exe",
    "have a descriptor of the harness": "exec 2>/dev/null; for fd in /proc/self/fd/*; do "
    "case ${fd##*/} in 0|1|2|255) ;; *) readlink $fd && exit ;; esac; done; exit 1",
    "kill the first process": "kill -9 1; kill -STOP 1; sleep 0.2; ! grep -q '^State:.S' /proc/1/status",
    "read the host's keys": "grep . /proc/keys /proc/key-users",
    "use the host's keys": python("sys.exit(libc.syscall(NUMBERS['keyctl'], 0, -3, 1) < 0)"),
    "read the host's settings": "cat /proc/sys/kernel/core_pattern || cat /proc/sys/kernel/random/boot_id || "
    "grep . /proc/cmdline",
    "reach a hypervisor": python("socket.socket(40, socket.SOCK_STREAM)"),
    "use 32-bit system calls": python(
        "code = mmap.mmap(-1, 4096, prot=7); code.write(bytes.fromhex('b814000000cd80c3'))",
        "at = ctypes.addressof(ctypes.c_char.from_buffer(code))",
        "sys.exit(platform.machine() != 'x86_64' or ctypes.CFUNCTYPE(ctypes.c_int)(at)() <= 0)",
    ),
    "use the system calls of x32": python("sys.exit(libc.syscall(0x40000000 + 39) <= 0)"),
    **{
        f"call {name}": python(f"sys.exit(libc.syscall(NUMBERS[{name!r}], 0, 0, 0, 0, 0) < 0 or 0)")
        for name in (
            "unshare",
            "io_uring_setup",
            "pidfd_getfd",
            "perf_event_open",
            "bpf",
            "userfaultfd",
            "kcmp",
        )
    },
    "call what the filter does not know": python(
        "sys.exit(libc.syscall(900) >= 0 or ctypes.get_errno() != 38)"
    )
    + " && exit 1",
    "have a capability": "grep -E '^Cap(Eff|Prm|Bnd|Inh|Amb):.*[1-9a-f]' /proc/self/status",
    "gain privileges": "grep -E '^NoNewPrivs:.*0' /proc/self/status",
    "read the harness's environment": f"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -a {SECRET}",
    "read a secret in the user's home": 'cat "$HOME_SECRET" || '
    'cat "/proc/1/root$HOME_SECRET" || cat "/proc/1/cwd$HOME_SECRET"',
    "read a secret in the current folder": 'cat "$CWD_SECRET" || cat "/proc/1/cwd$CWD_SECRET"',
    "find another sandbox's file": "find / -name 'other-sandbox-secret*' -not -path '/proc/*' 2>/dev/null | grep .",
    "list the cache": 'ls "$CACHE"',
    # Where there are no overlays it can be learned: docs/local.md says so.
    "learn where the cache is": "grep ' / overlay ' /proc/mounts && "
    'grep -F "${CACHE##*/}/sandboxes" /proc/self/mountinfo /proc/mounts',
    "read shadow": "cat /etc/shadow || cat /etc/ssh/ssh_host_*",
    "replace the pipes of the harness": "mv /cooperbench/io /cooperbench/x || touch /cooperbench/io/x || "
    "ln -s / /cooperbench/io/9.in",
    "change the channel's script": "echo >>/cooperbench/lib/channel.sh",
    "reach a server on localhost": REACH_PORT,
    "reach an abstract socket": f"python3 -c '{CONNECT_ABSTRACT}'",
    "change the host's clock or name": "date -s 2000-01-01 || hostname elsewhere",
    "raise a hard limit": "ulimit -H -c unlimited",
}


class Host:
    """What there is to get at: secrets, a server, another sandbox."""

    def __init__(self, backend: LocalBackend, cache_dir: Path, home_secret: Path) -> None:
        self.cwd_secret = Path.cwd() / f"cwd-secret-{os.getpid()}"
        self.cwd_secret.write_text(SECRET)
        os.environ[SECRET_VARIABLE] = SECRET
        self.server = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0cooperbench-{os.getpid()}")
        self.abstract.listen()
        self.other = backend.create_sandbox("host")
        self.other.write_file("/workspace/other-sandbox-secret", SECRET.encode())
        self.env = {
            "HARNESS_PID": str(os.getpid()),
            "HOME_SECRET": str(home_secret),
            "CWD_SECRET": str(self.cwd_secret),
            "CACHE": str(cache_dir),
            "PORT": str(self.server.getsockname()[1]),
            "ABSTRACT": f"cooperbench-{os.getpid()}",
        }

    def close(self) -> None:
        self.other.terminate()
        self.server.close()
        self.abstract.close()
        self.cwd_secret.unlink()
        del os.environ[SECRET_VARIABLE]

    def succeeds(self, sandbox: Sandbox, script: str) -> bool:
        return sandbox.run(["bash", "-c", script], env=self.env, timeout_seconds=60).returncode == 0


def main() -> None:
    cache_dir, home_secret = Path(sys.argv[1]), Path(sys.argv[2])
    backend = LocalBackend(cache_dir=cache_dir)
    host = Host(backend, cache_dir, home_secret)
    sandbox = backend.create_sandbox("host", options=SandboxOptions())
    escaped = [name for name, script in ATTEMPTS.items() if host.succeeds(sandbox, script)]
    who = sandbox.run(
        [
            "bash",
            "-c",
            "id -u; python3 -c 'print(1)'; echo x >/workspace/f && git init -q /workspace/g",
        ]
    )
    sandbox.terminate()
    host.close()
    backend.close()
    left = sorted(
        path.name for folder in (cache_dir / "sandboxes").iterdir() for path in folder.iterdir()
    )
    print(
        json.dumps(
            {
                "escaped": escaped,
                "inside": who.stdout_read(),
                "errors": who.stderr_read(),
                "left": left,
            }
        )
    )


if __name__ == "__main__":
    main()
