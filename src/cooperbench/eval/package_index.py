"""Recognize in a runner's output that a package index or another server was unreachable.

Such a failure says nothing about a patch, and is gone once the network is back.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cooperbench.eval.log_parsers import prepare_log

_FAILURES = {
    "pip": r"""\s*ERROR:\s (?: Could\snot\sfind\sa\sversion | No\smatching\sdistribution
        | Could\snot\sinstall\spackages\sdue\sto\san\sOSError | HTTP\serror )""",
    "uv": r"(?: error: | \s*× | \s*(?:cause|Caused\sby): ) .* (?: Failed\sto | error\ssending )",
    "npm": r"npm\s(?:ERR!|error) .* (?: request\sto | \s50[234]\s )",
    "pnpm": r"\W? ERR_PNPM_\w+",
    "yarn": r"error\s(?: An\sunexpected\serror\soccurred: | Error: ) | ➤\sYN\d+: .* RequestError:",
    "go": r"(?: go:\s | \S+\.go:\d+:\d+:\s ) .* (?: dial\stcp | Get\s\"https?: )",
    "cargo": r"error:\s failed\sto\s",
    "bundler": r"Could\snot\s (?: reach\shost | fetch\sspecs\sfrom )",
    "conda": r"CondaHTTPError:",
    "composer": r".* curl\serror\s\d+\swhile\sdownloading",
    "maven": r"\[ERROR\] .* Could\snot\stransfer",
    "poetry": r"\s*All\sattempts\sto\sconnect\sto",
    "apt": r"[EW]:\s (?: Failed\sto\sfetch | .* Temporary\sfailure\sresolving )",
    "git": r"fatal:\sunable\sto\saccess",
    "curl": r"curl:\s\(\d+\)",
    "wget": r"wget:\sunable\sto\sresolve",
}
"""How the lines begin in which tools give up. Lines that announce a retry do not match."""
_FAILED_LINE = re.compile(
    "|".join(f"(?P<{tool}>{pattern})" for tool, pattern in _FAILURES.items()), re.VERBOSE
)
_CAUSE = re.compile(
    r"""
    # C library, Python, uv, curl
    Temporary\sfailure\s (?: in\sname\sresolution | resolving ) | Name\sor\sservice\snot\sknown
    | No\saddress\sassociated\swith\shostname | [Nn]ame\sdoes\snot\sresolve | dns\serror
    | [Nn]etwork\sis\s (?: unreachable | down ) | [Nn]o\sroute\sto\shost | [Cc]onnection\srefused
    | [Cc]onnection\s (?: reset | aborted ) | [Tt]imed\sout | Timeout\swas\sreached
    | (?: Could\snot | Couldn't | unable\sto ) \sresolve | Could\snot\sreach\shost
    | (?: Could\snot | Couldn't | Failed\sto | Cannot ) \sconnect\sto | attempts\sto\sconnect\sto
    | Unknown\shost | CONNECTION\sFAILED | CERTIFICATE_VERIFY_FAILED | SSL\sconnect\serror
    # node
    | ECONNREFUSED | ECONNRESET | ENOTFOUND | EAI_AGAIN | ENETUNREACH | EHOSTUNREACH | E\w*TIMEDOUT
    | ERR_SOCKET_TIMEOUT | Socket\stimeout | socket\shang\sup
    # go
    | no\ssuch\shost | server\smisbehaving | i/o\stimeout | TLS\shandshake\stimeout
    # a server or a proxy that is down
    | too\smany\s50[0234]\serror\sresponses | \b50[234]\s [A-Z][\w ]{4,30} | HTTP\serror\s50[234]
    """,
    re.VERBOSE,
)
_PIP_CONNECTION = re.compile(
    r"(?:after connection broken by|Could not fetch URL|HTTP error 50)[^\n]{0,1000}"
)
"""What pip prints before it retries, and what it writes to its log."""
_PIP_INDEX = re.compile(r"Looking in indexes: [^\n]{0,500}")
_HOST = re.compile(
    r"""
    https?:// (?: [^\s/@]{1,200}@ )? (?P<url_host> [\w.-]{1,255} )
    | host='(?P<python_host> [^']{1,255} )'
    | (?: ENOTFOUND | EAI_AGAIN | ECONNREFUSED | lookup | resolving | reach\shost | connect\sto
        | host:? | address ) \s ['‘]? (?P<named_host> [\w-]{1,63} (?: [.][\w-]{1,63} )+ )
    """,
    re.VERBOSE,
)
_MAX_LINES_TO_CAUSE = 12
"""Maximum number of lines from a line in which a tool gives up to the cause that it names."""
_MAX_LINE_LENGTH = 2000


class Outage(NamedTuple):
    """A server that a runner needs and could not reach."""

    tool: str
    host: str
    """Empty if the output does not name it."""
    cause: str

    def __str__(self) -> str:
        """Return one line for users."""
        server = "the package index" if self.is_of_package_manager else "the server"
        host = f" {self.host}" if self.host else ""
        return f"{server}{host} is unreachable ({self.tool}: {self.cause})"

    @property
    def is_of_package_manager(self) -> bool:
        """Whether a package manager failed, and not another tool that downloads."""
        return self.tool not in ("apt", "curl", "git", "wget")


def find_outage(output: str, pip_log: str = "") -> Outage | None:
    """Return the first server that a tool gave up to reach; None if there is none.

    `pip_log` is the file that PIP_LOG names: pip does not print why it finds no version.
    """
    lines = [line[:_MAX_LINE_LENGTH] for line in prepare_log(output).split("\n")]
    has_pip_failed = False
    for number, line in enumerate(lines):
        failed = _FAILED_LINE.match(line)
        if failed is None or failed.lastgroup is None:
            continue
        if failed.lastgroup == "pip":
            has_pip_failed = True
            continue
        details = "\n".join(lines[number : number + _MAX_LINES_TO_CAUSE])
        outage = _outage_in(failed.lastgroup, details)
        if outage:
            return outage
    return _outage_of_pip(output, pip_log) if has_pip_failed else None


def _outage_of_pip(output: str, pip_log: str) -> Outage | None:
    """Return the outage in the lines about connections, which may be far above the error."""
    for text in (pip_log, output):
        connection = _PIP_CONNECTION.search(text)
        if connection is None:
            continue
        index = _PIP_INDEX.search(output)
        details = f"{connection[0]}\n{index[0]}" if index else connection[0]
        outage = _outage_in("pip", details)
        if outage:
            return outage._replace(host=outage.host or "pypi.org")
    return None


def _outage_in(tool: str, details: str) -> Outage | None:
    cause = _CAUSE.search(details)
    if cause is None:
        return None
    host = _HOST.search(details)
    name = ""
    if host:
        name = host["url_host"] or host["python_host"] or host["named_host"]
    return Outage(tool, name, cause[0].strip())
