"""Keeping a root sandbox from changing the host's device nodes.

The nodes in a sandbox's /dev are the host's. Root without capabilities still owns them: `chmod 000 /dev/null` inside
would take effect outside. Writing through a node does not need a writable mount, changing it does; so the thread that
starts sandboxes sees them on read-only mounts, in a mount namespace of its own that only its children share.
"""

from __future__ import annotations

import ctypes
import os

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NOEXEC = 8
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19


def protect_devices() -> None:
    """For the calling thread and what it starts. Needs to be done by root only, and can be done by root only."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _check(libc.unshare(_CLONE_FS | _CLONE_NEWNS))
        _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_SLAVE | _MS_REC), None))
        for name in DEVICES:
            node = os.fsencode(f"/dev/{name}")
            flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NOEXEC
            _check(libc.mount(node, node, None, ctypes.c_ulong(_MS_BIND), None))
            _check(libc.mount(None, node, None, ctypes.c_ulong(flags), None))
    except OSError:
        return  # root of a container without the right to mount: the nodes are that container's own


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "cannot make device nodes read-only")
