"""`cooperbench config gcp`: sets up a project for runs and evaluations, question by question.

Answers are written before the services are asked, so that one that is still being enabled costs no answers.
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
from cooperbench.text import printable

_APIS = tuple(f"{name}.googleapis.com" for name in ("compute", "batch", "storage", "logging"))
_AGAIN = "and then again: cooperbench config gcp"


def set_up(given: Mapping[str, str | None], *, yes: bool, skip_tests: bool) -> bool:
    """Do all services answer (or were not asked)? `given`: what the command line said; None is asked for."""
    if shutil.which("gcloud") is None:
        raise UserError(
            f"gcloud is not installed: https://cloud.google.com/sdk/docs/install, {_AGAIN}"
        )
    _say("Google Cloud for CooperBench: Enter takes what stands in brackets.")
    _sign_in(
        "gcloud auth login",
        _gcloud("auth", "list", "--filter=status:ACTIVE", "--format=value(account)"),
        yes,
    )
    if not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        _sign_in(SIGN_IN, _gcloud("auth", "application-default", "print-access-token"), yes)
    settings = _ask_settings(given, yes=yes)
    if skip_tests:
        _say("The services were not asked. Try it: cooperbench run --backend gcp")
        return True
    ready = True
    for service, probe in probes(settings, make_bucket=True).items():
        try:
            _say(f"  ✓ {service}: {probe()}")
        except CooperBenchError as error:
            ready = False
            _say(f"  ✗ {service}: {error}")
    _say("Ready: cooperbench run --backend gcp" if ready else f"Fix this, {_AGAIN}")
    return ready


def _sign_in(command: str, signed_in: str, yes: bool) -> None:
    """Signing in needs a browser or a code: no option can stand for it."""
    if signed_in:
        return
    agreed = not yes and _confirm(f"You are not signed in. Run {command} now?")
    if not agreed or subprocess.run(command.split(), check=False).returncode:
        raise UserError(f"Authentication failed: {command}, {_AGAIN}")


def _ask_settings(given: Mapping[str, str | None], *, yes: bool) -> GcpSettings:
    """Asked, completed, and written."""
    filed = load_settings()

    def choose(name: str, default: str) -> str:
        """What the command line said, else what the user says, else what was said before, else the default."""
        chosen = given[name]
        if chosen is None:
            default = str(filed.get(KEYS[name]) or "") or default
            chosen = default if yes else _read(f"{name} [{default}]: ") or default
        if not chosen:
            raise UserError(f"no {name} was chosen: --{name}")
        return chosen

    project = choose("project", _gcloud("config", "get-value", "project").removeprefix("(unset)"))
    enabled = _gcloud(
        "services", "list", "--enabled", f"--project={project}", "--format=value(config.name)"
    )
    missing = [name for name in _APIS if name not in enabled.split()]
    if missing and (yes or _confirm(f"API not enabled: {', '.join(missing)}. Enable now?")):
        _say("  … enabling, which takes a minute")
        # Whatever goes wrong is found out when the services are asked.
        _gcloud("services", "enable", *missing, f"--project={project}")
    configured = _gcloud("config", "get-value", "compute/region").removeprefix("(unset)")
    region = choose("region", configured or DEFAULT_REGION)
    if not str(filed.get(KEYS["zone"])).startswith(f"{region}-"):
        filed.pop(KEYS["zone"], None)
    zone = choose("zone", default_zone(region))
    bucket = choose("bucket", default_bucket(project))
    answers = {"project": project, "region": region, "zone": zone, "bucket": bucket}
    if machine_type := given["machine_type"]:
        answers["machine_type"] = machine_type
    settings = read_settings(**answers)
    for name, value in answers.items():
        save_setting(KEYS[name], value)
        if (other := os.environ.get(VARIABLES[name], value)) != value:
            _say(f"  ! {VARIABLES[name]} is set to {other}, and overrides the file")
    _say(f"  ✓ settings: written to {config_file()}")
    return settings


def _confirm(question: str) -> bool:
    return _read(f"{question} [Y/n] ").lower() in ("", "y", "yes")


def _read(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise UserError(
            "there is no terminal to ask at: cooperbench config gcp --yes --project PROJECT"
        )
    try:
        return input(prompt).strip()
    except EOFError:
        raise UserError("the questions were not answered; nothing was written") from None


def _say(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def _gcloud(*words: str) -> str:
    """What gcloud prints, run without a terminal; empty where it fails, which is told."""
    command = ["gcloud", *words, "--quiet"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        _say(f"  ! gcloud {' '.join(words[:2])}: {done.stderr.strip()[:300]}")
        return ""
    return done.stdout.strip()


def probes(settings: GcpSettings, *, make_bucket: bool) -> dict[str, Callable[[], str]]:
    """By service, each asked once as a run would: says what there is, else raises what is wrong."""

    def compute() -> str:
        Compute(settings).machine_type(settings.machine_type)
        return f"zone {settings.zone}, {settings.machine_type} machines for agents"

    def batch() -> str:
        return f"region {settings.region}, {len(list_jobs(batch_client(), settings))} of our jobs"

    def storage() -> str:
        there = open_bucket(settings, make=make_bucket) is not None
        return f"bucket {settings.bucket}" + ("" if there else ", which the first evaluation makes")

    return {"Compute Engine": compute, "Batch": batch, "Cloud Storage": storage}
