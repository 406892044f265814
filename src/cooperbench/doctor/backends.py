"""Checks of backends. One that needs more than to be loaded has a function of its own in `OWN_CHECKS`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cooperbench.doctor.findings import Asked, Finding, Status, from_error, missing_extra
from cooperbench.errors import CooperBenchError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from cooperbench.sandbox.contract import CheckingBackend, EvalBackend

LOCAL_BACKEND = "backend local"
_LIMITS = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}


def backends(asked: Asked) -> Iterator[Finding]:
    del asked
    from cooperbench.eval.backends import backend_names

    first = [name for name in ("local", "docker") if name in backend_names()]
    for name in dict.fromkeys((*first, *backend_names())):
        yield from OWN_CHECKS[name]() if name in OWN_CHECKS else _loads(name, _check)


def _local() -> Iterator[Finding]:
    """By starting a sandbox, as nothing else tells."""
    from cooperbench.backends.local import LocalBackend
    from cooperbench.backends.local.bubblewrap import about_limits

    backend = LocalBackend()
    try:
        sandbox = backend.create_sandbox("host", timeout=60)
        code = sandbox.run(["true"], timeout_seconds=30).returncode
        sandbox.terminate()
    except CooperBenchError as error:
        what, _, mend = str(error).partition(". ")
        yield Finding(LOCAL_BACKEND, Status.BROKEN, what, mend or "use --backend docker")
        return
    finally:
        backend.close()
    if code:
        detail = f"a sandbox started but `true` gave {code}"
        yield Finding(LOCAL_BACKEND, Status.BROKEN, detail, "use --backend docker")
        return
    yield Finding(LOCAL_BACKEND, Status.OK, f"a sandbox was started and ended; {about_limits()}")


def _engines() -> Iterator[Finding]:
    if missing := missing_extra("backend docker", "docker", "docker"):
        yield missing
        return
    yield _engine("docker")
    yield _engine("podman")


def _engine(client: str) -> Finding:
    from cooperbench.backends.docker.engine import connect

    name = f"backend docker ({client})"
    try:
        engine = connect(client)
    except UserError as error:
        what, _, mend = str(error).partition(": ")
        if shutil.which(client) is not None:
            return Finding(name, Status.BROKEN, what, mend)
        where = "Docker: https://docs.docker.com/engine/install" if client == "docker" else "Podman"
        return Finding(name, Status.MISSING, what, f"install {where}")
    try:
        version, info = engine.api.version(), engine.info
        cannot = [limit for limit, key in _LIMITS.items() if not info.get(key, True)]
        about = f"{version.get('Version')} at {engine.where}, cgroup v{info.get('CgroupVersion', '?')}"
        if cannot:
            mend = "enable these cgroup controllers, or set the limits to 0"
            return Finding(name, Status.BROKEN, f"{about}; it cannot limit {', '.join(cannot)}", mend)
        return Finding(name, Status.OK, f"{about}; limits cpu, memory and processes")
    except (CooperBenchError, OSError) as error:
        return Finding(name, Status.BROKEN, str(error), f"{client} info")
    finally:
        engine.close()


def _gcp() -> Iterator[Finding]:
    """By asking each service once, if there is a project and credentials where Google's libraries look for them."""
    own = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    credentials = Path(own or "~/.config/gcloud/application_default_credentials.json").expanduser()
    (finding,) = _loads("gcp")
    if finding.status is not Status.OK:
        yield finding
    elif not credentials.is_file():
        mend = "gcloud auth application-default login"
        yield Finding(finding.name, Status.MISSING, f"no credentials in {credentials}", mend)
    else:
        yield from _google_services(finding.name)


def _google_services(name: str) -> Iterator[Finding]:
    from cooperbench.backends.gcp.settings import read_settings
    from cooperbench.backends.gcp.wizard import probes

    settings = read_settings()
    answers = []
    for probe in probes(settings, make_bucket=False):
        try:
            answers.append(f"{probe.service}: {probe.ask()}")
        except CooperBenchError as error:
            yield from_error(f"{name} ({probe.service})", Status.BROKEN, error, mend_is_last=True)
            return
    yield Finding(name, Status.OK, f"project {settings.project}; {'; '.join(answers)}")


def _loads(name: str, use: Callable[[EvalBackend], str] = lambda _: "can be loaded") -> Iterator[Finding]:
    from cooperbench.eval.backends import get_backend

    try:
        about = use(get_backend(name))
    except UserError as error:
        yield from_error(f"backend {name}", Status.MISSING, error)
    except CooperBenchError as error:
        yield Finding(f"backend {name}", Status.BROKEN, str(error), "try again later")
    except Exception as error:  # somebody else's code: it must not hide the others
        detail = f"cannot be loaded: {type(error).__name__}: {error}"
        yield Finding(f"backend {name}", Status.BROKEN, detail, "see where it comes from: pip list")
    else:
        yield Finding(f"backend {name}", Status.OK, about)


def _check(backend: EvalBackend) -> str:
    """By its own `check` where it has one, which may ask a service: only that knows whether a token is valid."""
    from cooperbench.sandbox.contract import capabilities_of

    if not capabilities_of(backend).checks:
        return "can be loaded"
    try:
        cast("CheckingBackend", backend).check()
        return str(getattr(backend, "about", "its check passes"))
    finally:
        if capabilities_of(backend).closes:
            cast("Any", backend).close()


OWN_CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "local": _local,
    "docker": _engines,
    "gcp": _gcp,
}
