"""The one thread of this process that starts all of its sandboxes, and so is their parent.

This is how a sandbox ends with the harness, whatever ends that: the kernel kills bubblewrap when the *thread* that
started it ends (`--die-with-parent`, PR_SET_PDEATHSIG). Worker threads come and go; this one lasts as long as the
process does.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NOEXEC = 8
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19

_Request = tuple["Callable[[], Any]", "Future[Any]"]
_lock = threading.Lock()
_requests: dict[int, queue.SimpleQueue[_Request]] = {}
"""By process: a forked child has no such thread, and gets one of its own."""


def call_in_parent_thread(action: Callable[[], T]) -> T:
    """Do it in that thread and return, or raise, what comes of it."""
    with _lock:
        requests = _requests.get(os.getpid())
        if requests is None:
            _requests.clear()
            requests = _requests[os.getpid()] = queue.SimpleQueue()
            threading.Thread(target=_work, args=(requests,), name="sandbox-parent", daemon=True).start()
    future: Future[T] = Future()
    requests.put((action, future))
    return future.result()


def _work(requests: queue.SimpleQueue[_Request]) -> None:
    _protect_devices()
    while True:
        action, future = requests.get()
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)


def _protect_devices() -> None:
    """Keep sandboxes of root from changing the host's device nodes.

    The nodes in a sandbox's /dev are the host's. Root without capabilities still owns them: `chmod 000 /dev/null`
    inside would take effect outside. Writing through a node does not need a writable mount, changing it does; so this
    thread sees them on read-only mounts, in a mount namespace of its own that only its children share.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _check(libc.unshare(_CLONE_FS | _CLONE_NEWNS))
        _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_SLAVE | _MS_REC), None))
        for name in _DEVICES:
            node = os.fsencode(f"/dev/{name}")
            flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NOEXEC
            _check(libc.mount(node, node, None, ctypes.c_ulong(_MS_BIND), None))
            _check(libc.mount(None, node, None, ctypes.c_ulong(flags), None))
    except OSError:
        return  # root of a container without the right to mount: the nodes are that container's own


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "cannot make device nodes read-only")
