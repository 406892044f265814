"""The system calls that a sandbox does not get, as a program for the kernel's seccomp filter (`bwrap --seccomp`).

Refused are calls that look into other processes, calls that need rights which nobody has inside, and calls that are
known for kernel bugs through which sandboxes were escaped. So there are no debuggers, no `strace`, no io_uring and no
programs for other processors (on x86-64: no 32-bit ones).
"""

from __future__ import annotations

import platform
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

from cooperbench.errors import SandboxError

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    "x86_64": {
        *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
        *(248, 249, 250),  # add_key, request_key, keyctl
        *(165, 166, 155, 161, 272, 308),  # mount, umount2, pivot_root, chroot, unshare, setns
        *(
            321,
            298,
            323,
            300,
            304,
        ),  # bpf, perf_event_open, userfaultfd, fanotify_init, open_by_handle_at
        *(
            246,
            320,
            169,
            167,
            168,
            163,
        ),  # kexec_load, kexec_file_load, reboot, swapon, swapoff, acct
        *(175, 313, 176, 172, 173),  # init_module, finit_module, delete_module, iopl, ioperm
        *(164, 227, 305, 159),  # settimeofday, clock_settime, clock_adjtime, adjtimex
        *(103, 179, 153, 212),  # syslog, quotactl, vhangup, lookup_dcookie
        *(170, 171),  # sethostname, setdomainname
    },
    "aarch64": {
        *(117, 270, 271, 272),
        *(217, 218, 219),
        *(40, 39, 41, 51, 97, 268),
        *(280, 241, 282, 262, 265),
        *(104, 294, 142, 224, 225, 89),
        *(105, 273, 106),
        *(170, 112, 266, 171),
        *(116, 60, 58, 18, 161, 162),
    },
}
# From 424 on the numbers are the same everywhere: open_tree to fspick, pidfd_getfd, mount_setattr, quotactl_fd.
_REFUSED_EVERYWHERE = {*range(428, 434), 438, 442, 443}
_ABSENT = {425, 426, 427, 435}
"""io_uring, and clone3, whose flags a filter cannot see: programs then use older calls."""
_NEWEST = 466
"""Of what is newer than this list nobody knows what it does. On x86-64 also keeps out the calls of x32."""
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. Others are not all separated by network namespaces, e.g. vsock to a hypervisor."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def seccomp_program(machine: str = "") -> bytes:
    """For this machine by default."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxError(f"local sandboxes are for x86_64 and aarch64, not for {machine}")
    refuse, lacks, allow = _returns(_FAIL | EPERM), _returns(_FAIL | ENOSYS), _returns(_ALLOW)
    program = [
        *(
            _step(_LOAD, _ARCHITECTURE_AT),
            _step(_EQUAL, _ARCHITECTURES[machine], 1),
            *_returns(_KILL),
        ),
        *(_step(_LOAD, _NUMBER_AT), *_when(_AT_LEAST, _NEWEST + 1, lacks)),
    ]
    for number in sorted(_REFUSED[machine] | _REFUSED_EVERYWHERE):
        program += _when(_EQUAL, number, refuse)
    for number in sorted(_ABSENT):
        program += _when(_EQUAL, number, lacks)
    flags = [_step(_LOAD, _FIRST_ARGUMENT_AT), *_when(_ANY_BIT, _NEW_NAMESPACES, refuse), *allow]
    program += _when(_EQUAL, _CLONE[machine], flags)
    family = [_step(_LOAD, _FIRST_ARGUMENT_AT)]
    for known in _FAMILIES:
        family += _when(_EQUAL, known, allow)
    program += _when(_EQUAL, _SOCKET[machine], [*family, *_returns(_FAIL | EAFNOSUPPORT)])
    return b"".join([*program, *allow])


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction; after a comparison so many are left out."""
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def _returns(action: int) -> list[bytes]:
    return [_step(_RETURN, action)]


def _when(operation: int, value: int, then: list[bytes]) -> list[bytes]:
    """What is done only if a comparison with what was loaded holds."""
    return [_step(operation, value, 0, len(then)), *then]
