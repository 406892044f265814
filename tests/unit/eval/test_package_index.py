"""Output of real package managers whose index was unreachable, and output that only looks like it."""

from __future__ import annotations

import pytest

from cooperbench.eval.package_index import find_outage

PIP = """\
Looking in indexes: http://127.0.0.1:9/simple/
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7fa9634fca90>: Failed to establish a new \
connection: [Errno 111] Connection refused')': /simple/widget/
ERROR: Could not find a version that satisfies the requirement widget (from versions: none)
ERROR: No matching distribution found for widget
"""
PIP_WITHOUT_RETRIES = """\
  error: subprocess-exited-with-error
      ERROR: Could not find a version that satisfies the requirement setuptools (from versions: none)
      ERROR: No matching distribution found for setuptools
"""
PIP_LOG = """\
2026-11-18T18:37:21,158 Fetching project page and analyzing links: https://index.invalid/simple/setuptools/
2026-11-18T18:37:21,167 Could not fetch URL https://index.invalid/simple/setuptools/: connection error: \
HTTPSConnectionPool(host='index.invalid', port=443): Max retries exceeded with url: /simple/setuptools/ (Caused by \
NewConnectionError('<object at 0x7fab7c9e0890>: Failed to establish a new connection: [Errno -2] Name or service not known')) - skipping
"""
UV = """\
Using Python 3.11.7 environment at: v
error: Failed to fetch: `https://index.invalid/simple/widget/`
  Caused by: error sending request for url (https://index.invalid/simple/widget/)
  Caused by: client error (Connect)
  Caused by: dns error: failed to lookup address information: Name or service not known
"""
NPM = """\
npm error code ENOTFOUND
npm error syscall getaddrinfo
npm error network request to https://registry.npmjs.org/left-pad failed, reason: getaddrinfo ENOTFOUND registry.npmjs.org
npm error network This is a problem related to network connectivity.
"""
PNPM = """\
\u2009ERR_PNPM_META_FETCH_FAIL\u2009 GET http://127.0.0.1:9/left-pad: request to http://127.0.0.1:9/left-pad failed, reason: \
connect ECONNREFUSED 127.0.0.1:9
"""
YARN_1 = """\
[1/4] Resolving packages...
info There appears to be trouble with your network connection. Retrying...
error Error: getaddrinfo ENOTFOUND registry.yarnpkg.com
    at GetAddrInfoReqWrap.onlookupall [as oncomplete] (node:dns:122:26)
"""
YARN_4 = """\
➤ YN0000: ┌ Resolution step
➤ YN0001: │ RequestError: connect ECONNREFUSED 127.0.0.1:9
    at ClientRequest.<anonymous> (/x/yarn.js:148:14258)
"""
GO = """\
go: downloading github.com/stretchr/testify v1.8.0
go: github.com/stretchr/testify@v1.8.0: Get "https://proxy.golang.org/github.com/stretchr/testify/@v/v1.8.0.mod": dial tcp: \
lookup proxy.golang.org on 10.0.0.2:53: no such host
"""
GO_IMPORT = """\
chi_test.go:4:2: github.com/a/b@v1.0.0: Get "https://proxy.golang.org/github.com/a/b/@v/v1.0.0.zip": dial tcp 142.250.1.1:443: \
i/o timeout
"""
CARGO = """\
    Updating crates.io index
error: failed to get `rand` as a dependency of package `x v1.0.0 (/tmp/ref/rs)`

Caused by:
  download of config.json failed

Caused by:
  failed to download from `https://index.crates.io/config.json`

Caused by:
  [6] Could not resolve hostname (Could not resolve host: index.crates.io)
"""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (PIP, "the package index 127.0.0.1 is unreachable (pip: Connection refused)"),
        (UV, "the package index index.invalid is unreachable (uv: dns error)"),
        (NPM, "the package index registry.npmjs.org is unreachable (npm: ENOTFOUND)"),
        (PNPM, "the package index 127.0.0.1 is unreachable (pnpm: ECONNREFUSED)"),
        (YARN_1, "the package index registry.yarnpkg.com is unreachable (yarn: ENOTFOUND)"),
        (YARN_4, "the package index 127.0.0.1 is unreachable (yarn: ECONNREFUSED)"),
        (GO, "the package index proxy.golang.org is unreachable (go: no such host)"),
        (GO_IMPORT, "the package index proxy.golang.org is unreachable (go: i/o timeout)"),
        (CARGO, "the package index index.crates.io is unreachable (cargo: Could not resolve)"),
        ("Could not reach host rubygems.org. Check your network connection and try again.\n",
         "the package index rubygems.org is unreachable (bundler: Could not reach host)"),
        ("fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com\n",
         "the server github.com is unreachable (git: Could not resolve)"),
        ("curl: (7) Failed to connect to example.org port 443: Connection refused\n",
         "the server example.org is unreachable (curl: Failed to connect to)"),
        ("npm ERR! 503 Service Unavailable - GET https://registry.npmjs.org/x - down\n",
         "the package index registry.npmjs.org is unreachable (npm: 503 Service Unavailable)"),
    ],
)  # fmt: skip
def test_an_outage_names_the_host_and_the_cause(output: str, message: str) -> None:
    assert str(find_outage(f"Cleaning up\n{output}Cleaned up.\n")) == message


def test_the_log_of_pip_says_what_its_output_does_not() -> None:
    assert find_outage(PIP_WITHOUT_RETRIES) is None
    outage = find_outage(PIP_WITHOUT_RETRIES, PIP_LOG)
    assert outage is not None
    assert (outage.host, outage.cause) == ("index.invalid", "Name or service not known")


@pytest.mark.parametrize(
    "output",
    [
        # A retry that worked.
        PIP.partition("ERROR")[0] + "Successfully installed widget-1.0\n1 passed in 0.1s\n",
        "ERROR: Could not find a version that satisfies the requirement widget==9 (from versions: 1.0)\n",
        "npm error 404 Not Found - GET https://registry.npmjs.org/nothere\n",
        "error: failed to run custom build command for `x`\n",
        # Tests of programs that use a network.
        '    client_test.go:12: Get "http://127.0.0.1:1": dial tcp 127.0.0.1:1: connection refused\n',
        "E   ConnectionRefusedError: [Errno 111] Connection refused\n",
        "",
    ],
)
def test_other_failures_are_not_outages(output: str) -> None:
    assert find_outage(output, "") is None


def test_hostile_output_is_read_in_little_time() -> None:
    for part in ("npm error ", "ERROR: HTTP error", "a.go:1:1: Get ", "[ERROR] x ", "× "):
        find_outage(part * 50_000)
        find_outage(f"{part}\n" * 20_000)
