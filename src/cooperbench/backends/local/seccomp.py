"""A seccomp filter (`bwrap --seccomp`): the system calls that a sandbox may not use.

Refused are calls that look into other processes, calls that need privileges which nobody has
inside, and calls that are known for kernel bugs through which sandboxes were escaped. So there are
no debuggers, no `strace`, no io_uring and no programs for other processors (on x86-64: no 32-bit
ones).

The filter is a program of classic BPF: see seccomp(2) and the kernel's linux/filter.h.
"""

from __future__ import annotations

import platform
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

from cooperbench.errors import SandboxError

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Constants AUDIT_ARCH_* of linux/audit.h."""

_REFUSED_X86_64 = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "unshare": 272,
    "setns": 308,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "iopl": 172,
    "ioperm": 173,
    "settimeofday": 164,
    "clock_settime": 227,
    "clock_adjtime": 305,
    "adjtimex": 159,
    "syslog": 103,
    "quotactl": 179,
    "vhangup": 153,
    "lookup_dcookie": 212,
    "sethostname": 170,
    "setdomainname": 171,
}
_REFUSED_AARCH64 = {
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "unshare": 97,
    "setns": 268,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "reboot": 142,
    "swapon": 224,
    "swapoff": 225,
    "acct": 89,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "settimeofday": 170,
    "clock_settime": 112,
    "clock_adjtime": 266,
    "adjtimex": 171,
    "syslog": 116,
    "quotactl": 60,
    "vhangup": 58,
    "lookup_dcookie": 18,
    "sethostname": 161,
    "setdomainname": 162,
}
# From 424 on the numbers are the same on all processors.
_REFUSED_EVERYWHERE = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_REFUSED = {"x86_64": _REFUSED_X86_64, "aarch64": _REFUSED_AARCH64}

_NOT_IMPLEMENTED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,
}
"""Calls that seem to be missing, so that programs use older ones. The flags of clone3 are in
memory, where a filter cannot see them."""
_NEWEST_KNOWN_CALL = 466
"""Newer calls seem to be missing, since their effect is unknown. This also excludes x32 calls."""
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_NEW_NAMESPACE_FLAGS = 0x7E020000
_SOCKET_FAMILIES = {"unix": 1, "ipv4": 2, "ipv6": 10, "netlink": 16}
"""Allowed families. Network namespaces do not separate all others, e.g. vsock to a hypervisor."""

# Operations of classic BPF.
_LOAD_WORD = 0x20
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_AT_LEAST = 0x35
_JUMP_IF_ANY_BIT = 0x45
_RETURN = 0x06

# Offsets in struct seccomp_data.
_CALL_NUMBER_OFFSET = 0
_ARCHITECTURE_OFFSET = 4
_FIRST_ARGUMENT_OFFSET = 16

# Actions of seccomp; the error number is added to _FAIL_WITH.
_ALLOW_ACTION = 0x7FFF0000
_KILL_ACTION = 0x80000000
_FAIL_WITH = 0x00050000

Instructions = list[bytes]


def seccomp_program(machine: str = "") -> bytes:
    """Return the filter for a processor architecture, by default that of this machine."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxError(f"local sandboxes need x86_64 or aarch64, not {machine}")
    refuse = _return(_FAIL_WITH | EPERM)
    not_implemented = _return(_FAIL_WITH | ENOSYS)
    allow = _return(_ALLOW_ACTION)

    program = _kill_unless_architecture(_ARCHITECTURES[machine])
    program += _load(_CALL_NUMBER_OFFSET)
    program += _if(_JUMP_IF_AT_LEAST, _NEWEST_KNOWN_CALL + 1, not_implemented)
    refused_calls = {*_REFUSED[machine].values(), *_REFUSED_EVERYWHERE.values()}
    for number in sorted(refused_calls):
        program += _if(_JUMP_IF_EQUAL, number, refuse)
    for number in sorted(_NOT_IMPLEMENTED.values()):
        program += _if(_JUMP_IF_EQUAL, number, not_implemented)
    program += _if(_JUMP_IF_EQUAL, _CLONE[machine], _check_clone(refuse, allow))
    program += _if(_JUMP_IF_EQUAL, _SOCKET[machine], _check_socket(allow))
    program += allow
    return b"".join(program)


def _kill_unless_architecture(architecture: int) -> Instructions:
    """Kill a process that calls with the numbers of another architecture."""
    return [
        *_load(_ARCHITECTURE_OFFSET),
        _instruction(_JUMP_IF_EQUAL, architecture, skip_if_true=1),
        *_return(_KILL_ACTION),
    ]


def _check_clone(refuse: Instructions, allow: Instructions) -> Instructions:
    """Refuse clone(2) with flags that create namespaces."""
    return [
        *_load(_FIRST_ARGUMENT_OFFSET),
        *_if(_JUMP_IF_ANY_BIT, _NEW_NAMESPACE_FLAGS, refuse),
        *allow,
    ]


def _check_socket(allow: Instructions) -> Instructions:
    """Allow socket(2) only for some families."""
    instructions = _load(_FIRST_ARGUMENT_OFFSET)
    for family in _SOCKET_FAMILIES.values():
        instructions += _if(_JUMP_IF_EQUAL, family, allow)
    return instructions + _return(_FAIL_WITH | EAFNOSUPPORT)


def _instruction(
    operation: int, value: int, skip_if_true: int = 0, skip_if_false: int = 0
) -> bytes:
    """Return one instruction. After a comparison, it skips some of the next instructions."""
    return struct.pack("=HBBI", operation, skip_if_true, skip_if_false, value)


def _load(offset: int) -> Instructions:
    return [_instruction(_LOAD_WORD, offset)]


def _return(action: int) -> Instructions:
    return [_instruction(_RETURN, action)]


def _if(comparison: int, value: int, then: Instructions) -> Instructions:
    """Return instructions that run only if the loaded word compares with a value."""
    return [_instruction(comparison, value, skip_if_false=len(then)), *then]
