"""`cooperbench config gcp`: set up a project for runs and evaluations interactively.

Answers are saved before the services are probed, so that a service that is still being enabled does
not cost the user any answers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

from cooperbench.backends.gcp.batch import batch_client, list_jobs, open_bucket
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.google_clients import SIGN_IN
from cooperbench.backends.gcp.settings import (
    DEFAULT_REGION,
    KEYS,
    VARIABLES,
    GcpSettings,
    default_bucket,
    default_zone,
    read_settings,
)
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.settings import config_file, load_settings, save_setting
from cooperbench.text import plural, printable

_APIS = tuple(f"{name}.googleapis.com" for name in ("compute", "batch", "storage", "logging"))
_RETRY = "then run cooperbench config gcp again"


def set_up(arguments: Mapping[str, str | None], *, yes: bool, skip_tests: bool) -> bool:
    """Set up a project; return whether all probed services answer.

    Args:
        arguments: Values from the command line; the user is asked for those that are None.
        yes: Accept all defaults instead of asking.
        skip_tests: Do not probe the services.
    """
    if shutil.which("gcloud") is None:
        raise UserError(
            f"gcloud is not installed; see https://cloud.google.com/sdk/docs/install, {_RETRY}"
        )
    _print("Google Cloud for CooperBench. Press Enter to accept the value in brackets.")
    _sign_in(
        "gcloud auth login",
        _gcloud("auth", "list", "--filter=status:ACTIVE", "--format=value(account)"),
        yes,
    )
    if not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        _sign_in(SIGN_IN, _gcloud("auth", "application-default", "print-access-token"), yes)
    settings = _ask_settings(arguments, yes=yes)
    if skip_tests:
        _print("The services were not tested. Try: cooperbench run --backend gcp")
        return True
    is_ready = True
    for service, probe in probes(settings, create_bucket=True).items():
        try:
            _print(f"  ✓ {service}: {probe()}")
        except CooperBenchError as error:
            is_ready = False
            _print(f"  ✗ {service}: {error}")
    if is_ready:
        _print("Ready: cooperbench run --backend gcp")
    else:
        _print(f"Fix this, {_RETRY}")
    return is_ready


def _sign_in(command: str, signed_in: str, yes: bool) -> None:
    """Run a sign-in command unless the user is signed in. It needs a browser, so `--yes` cannot."""
    if signed_in:
        return
    agreed = not yes and _confirm(f"You are not signed in. Run {command} now?")
    if not agreed or subprocess.run(command.split(), check=False).returncode:
        raise UserError(f"Authentication failed: {command}, {_RETRY}")


def _ask_settings(arguments: Mapping[str, str | None], *, yes: bool) -> GcpSettings:
    """Ask for the settings that the command line does not have, and save them."""
    saved = load_settings()

    def choose(name: str, default: str) -> str:
        """Return the value of the command line, else the user's answer, else the default."""
        value = arguments[name]
        if value is None:
            default = str(saved.get(KEYS[name]) or "") or default
            value = default if yes else _read(f"{name} [{default}]: ") or default
        if not value:
            raise UserError(f"no {name} was chosen: --{name}")
        return value

    project = choose("project", _gcloud("config", "get-value", "project").removeprefix("(unset)"))
    _enable_apis(project, yes=yes)
    configured = _gcloud("config", "get-value", "compute/region").removeprefix("(unset)")
    region = choose("region", configured or DEFAULT_REGION)
    if not str(saved.get(KEYS["zone"])).startswith(f"{region}-"):
        saved.pop(KEYS["zone"], None)
    zone = choose("zone", default_zone(region))
    bucket = choose("bucket", default_bucket(project))
    answers = {"project": project, "region": region, "zone": zone, "bucket": bucket}
    if machine_type := arguments["machine_type"]:
        answers["machine_type"] = machine_type
    settings = read_settings(**answers)
    for name, value in answers.items():
        save_setting(KEYS[name], value)
        override = os.environ.get(VARIABLES[name], value)
        if override != value:
            _print(f"  ! {VARIABLES[name]} is set to {override} and overrides the file")
    _print(f"  ✓ settings: written to {config_file()}")
    return settings


def _enable_apis(project: str, *, yes: bool) -> None:
    """Enable the APIs that the project needs, if the user agrees."""
    enabled = _gcloud(
        "services", "list", "--enabled", f"--project={project}", "--format=value(config.name)"
    )
    missing = [name for name in _APIS if name not in enabled.split()]
    if missing and (yes or _confirm(f"API not enabled: {', '.join(missing)}. Enable now?")):
        _print("  … enabling, which takes a minute")
        # Errors show up when the services are probed.
        _gcloud("services", "enable", *missing, f"--project={project}")


def _confirm(question: str) -> bool:
    return _read(f"{question} [Y/n] ").lower() in ("", "y", "yes")


def _read(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise UserError("not running in a terminal: cooperbench config gcp --yes --project PROJECT")
    try:
        return input(prompt).strip()
    except EOFError:
        raise UserError("the questions were not answered; nothing was written") from None


def _print(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def _gcloud(*arguments: str) -> str:
    """Return the output of gcloud; print its error and return "" if it fails."""
    command = ["gcloud", *arguments, "--quiet"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        _print(f"  ! gcloud {' '.join(arguments[:2])}: {done.stderr.strip()[:300]}")
        return ""
    return done.stdout.strip()


def probes(settings: GcpSettings, *, create_bucket: bool) -> dict[str, Callable[[], str]]:
    """Return a probe per service, which describes what it found or raises what is wrong."""

    def _probe_compute() -> str:
        Compute(settings).machine_type(settings.machine_type)
        return f"zone {settings.zone}, {settings.machine_type} machines for agents"

    def _probe_batch() -> str:
        jobs = list_jobs(batch_client(), settings)
        return f"region {settings.region}, {plural(len(jobs), 'CooperBench job')}"

    def _probe_storage() -> str:
        if open_bucket(settings, create=create_bucket) is None:
            return f"bucket {settings.bucket} (the first evaluation creates it)"
        return f"bucket {settings.bucket}"

    return {
        "Compute Engine": _probe_compute,
        "Batch": _probe_batch,
        "Cloud Storage": _probe_storage,
    }
