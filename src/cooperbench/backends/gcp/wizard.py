"""`cooperbench config gcp`: from nothing to a project that runs and evaluations can use, question by question.

Every answer has a default, which is what was answered the last time, else what gcloud is set to. With `yes` nothing is
asked. Answers are written before the services are asked, so that one that is still being enabled costs no answers.
`probes`, which asks each of Google's services once, as a run would, also serves `cooperbench doctor`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.backends.gcp.batch import BatchJobs, open_bucket, storage_client
from cooperbench.backends.gcp.compute import Compute
from cooperbench.backends.gcp.faults import faults
from cooperbench.backends.gcp.git_server import ROLE, Firewall
from cooperbench.backends.gcp.settings import DEFAULT_REGION, KEYS, VARIABLES, default_zone, read_settings
from cooperbench.errors import CooperBenchError, InfraError, UserError
from cooperbench.settings import config_file, load_settings, save_setting
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.backends.gcp.settings import GcpSettings

APIS = {
    "compute.googleapis.com": "Compute Engine",
    "batch.googleapis.com": "Batch",
    "storage.googleapis.com": "Cloud Storage",
    "logging.googleapis.com": "Cloud Logging",
}
GCLOUD_IS_MISSING = (
    "gcloud is not installed: https://cloud.google.com/sdk/docs/install, "
    "and then again: cooperbench config gcp"
)
_GCLOUD_SECONDS = 300.0
_MOST_SHOWN = 12


@dataclass(frozen=True)
class SetupOptions:
    """What the command line said; None is asked for."""

    project: str | None = None
    region: str | None = None
    zone: str | None = None
    bucket: str | None = None
    machine_type: str | None = None
    yes: bool = False
    skip_tests: bool = False


def set_up(options: SetupOptions) -> bool:
    """Do all services answer (or were not asked)? UserError where it cannot go on."""
    return _Wizard(options).run()


class _Wizard:
    def __init__(self, options: SetupOptions) -> None:
        self._options = options
        self._filed = load_settings()

    def run(self) -> bool:
        self._say("Google Cloud for CooperBench: Enter takes what stands in brackets.\n")
        self._done("gcloud", require_gcloud() or "is there")
        self._sign_in()
        project = self._project()
        self._billing(project)
        self._apis(project)
        region = self._choose(
            "region", self._options.region, self._gcloud_value("compute/region") or DEFAULT_REGION
        )
        zone = self._zone(project, region)
        bucket = self._choose(
            "bucket", self._options.bucket, f"cooperbench-eval-{project.rpartition(':')[2]}"
        )
        answers = {"project": project, "region": region, "zone": zone, "bucket": bucket}
        if self._options.machine_type:
            answers["machine_type"] = self._options.machine_type
        settings = read_settings(**answers)
        for name, value in answers.items():
            save_setting(KEYS[name], value)
        self._done("settings", f"written to {config_file()}")
        for name, value in answers.items():
            if os.environ.get(VARIABLES[name], value) != value:
                self._say(
                    f"  ! {VARIABLES[name]} is set to {os.environ[VARIABLES[name]]}, and overrides the file"
                )
        if self._options.skip_tests:
            self._say("\nThe services were not asked. Try it: cooperbench run --backend gcp")
            return True
        failed = 0
        for probe in probes(settings, make_bucket=True):
            try:
                self._done(probe.service, probe.ask())
            except CooperBenchError as error:
                failed += 1
                self._say(f"  ✗ {probe.service}: {printable(str(error))}")
        self._say(
            "\nFix this, then run it again: cooperbench config gcp"
            if failed
            else "\nReady: cooperbench run --backend gcp"
        )
        return not failed

    def _sign_in(self) -> None:
        accounts = ask_lines("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
        if not accounts:
            self._or_show("Nobody is signed in to gcloud. Sign in now?", "auth", "login")
            accounts = ask_lines("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
        self._done("signed in", accounts[0] if accounts else "yes")
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            self._done("credentials", "in GOOGLE_APPLICATION_CREDENTIALS")
            return
        if not ask("auth", "application-default", "print-access-token").succeeded:
            question = "There are no credentials for programs (application default). Make them now?"
            self._or_show(question, "auth", "application-default", "login")
        self._done("credentials", "application default")

    def _or_show(self, question: str, *words: str) -> None:
        command = f"gcloud {' '.join(words)}"
        # Signing in needs a browser or a code: no option can stand for it.
        if self._options.yes or not self._yes(question) or not show(*words):
            raise UserError(f"Authentication failed: {command}, and then again: cooperbench config gcp")

    def _project(self) -> str:
        known = ask_lines("projects", "list", "--format=value(projectId)", f"--limit={_MOST_SHOWN}")
        default = self._gcloud_value("project") or (known[0] if len(known) == 1 else "")
        project = self._choose("project", self._options.project, default, known)
        said = ask("projects", "describe", project, "--format=value(projectId)")
        if not said.succeeded:
            there_are = f"; there are: {', '.join(known)}" if known else ""
            raise UserError(f"the project {project} cannot be used ({said.text}){there_are}")
        return project

    def _billing(self, project: str) -> None:
        said = ask("billing", "projects", "describe", project, "--format=value(billingEnabled)")
        if not said.succeeded:
            self._say(f"  ! billing: cannot be told ({said.text})")
        elif said.text.lower() != "true":
            raise UserError(
                f"billing is not enabled for {project}: gcloud billing projects link {project}"
                " --billing-account ACCOUNT (gcloud billing accounts list), and then again: cooperbench config gcp"
            )
        else:
            self._done("billing", "enabled")

    def _apis(self, project: str) -> None:
        said = ask("services", "list", "--enabled", f"--project={project}", "--format=value(config.name)")
        if not said.succeeded:
            raise UserError(
                f"the APIs of {project} cannot be listed ({said.text}): gcloud auth list tells who asks"
            )
        missing = [name for name in APIS if name not in said.text.split()]
        if missing:
            names = ", ".join(APIS[name] for name in missing)
            command = f"gcloud services enable {' '.join(missing)} --project={project}"
            if not self._yes(f"API not enabled: {names}. Enable now?"):
                raise UserError(f"API not enabled ({names}): {command}")
            self._say("  … enabling, which takes a minute")
            enabled = ask("services", "enable", *missing, f"--project={project}")
            if not enabled.succeeded:
                raise UserError(f"API not enabled ({names}; {enabled.text}): {command}")
        self._done("APIs", ", ".join(APIS.values()))

    def _zone(self, project: str, region: str) -> str:
        listing = ("compute", "zones", "list", f"--filter=region:{region}", "--format=value(name)")
        known = sorted(
            zone for zone in ask_lines(*listing, f"--project={project}") if zone.startswith(f"{region}-")
        )
        if not known:
            self._say(f"  ! the zones of {region} cannot be listed")
        filed = str(self._filed.get(KEYS["zone"]) or "")
        default = filed if filed in known else (known or [default_zone(region)])[0]
        zone = self._choose("zone", self._options.zone, default, known, remembered=False)
        if known and zone not in known:
            raise UserError(f"there is no zone {zone} in {region}; there are: {', '.join(known)}")
        return zone

    def _choose(
        self,
        name: str,
        given: str | None,
        default: str,
        known: Sequence[str] = (),
        *,
        remembered: bool = True,
    ) -> str:
        """What the command line said, else what the user says, else what was said before, else the default."""
        if given:
            self._done(name, given)
            return given
        default = (str(self._filed.get(KEYS[name]) or "") if remembered else "") or default
        if not self._options.yes:
            if known:
                self._say(
                    f"  {name}s: {', '.join(known[:_MOST_SHOWN])}{', …' if len(known) > _MOST_SHOWN else ''}"
                )
            default = self._read(f"{name} [{default}]: ") or default
        if not default:
            there_are = f"; there are: {', '.join(known)}" if known else ""
            raise UserError(f"no {name} was chosen: --{name}{there_are}")
        self._done(name, default)
        return default

    def _gcloud_value(self, key: str) -> str:
        said = ask("config", "get-value", key)
        return said.text if said.succeeded and said.text != "(unset)" else ""

    def _yes(self, question: str) -> bool:
        return self._options.yes or self._read(f"{question} [Y/n] ").lower() in ("", "y", "yes")

    def _read(self, prompt: str) -> str:
        if not sys.stdin.isatty():
            raise UserError("there is no terminal to ask at: cooperbench config gcp --yes --project PROJECT")
        sys.stdout.write(prompt)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            raise UserError("the questions were not answered; nothing was written")
        return line.strip()

    def _done(self, what: str, detail: str) -> None:
        self._say(f"  ✓ {what}: {detail}")

    def _say(self, line: str) -> None:
        sys.stdout.write(printable(line) + "\n" if "\n" not in line else line + "\n")
        sys.stdout.flush()


class GcloudResult(NamedTuple):
    succeeded: bool
    text: str
    """Its stdout, or the last line of its stderr where it failed."""


def require_gcloud() -> str:
    """The version of gcloud."""
    if shutil.which("gcloud") is None:
        raise UserError(GCLOUD_IS_MISSING)
    said = ask("version", "--format=value('Google Cloud SDK')")
    return said.text if said.succeeded else ""


def ask(*words: str) -> GcloudResult:
    """Run gcloud without a terminal."""
    command = ["gcloud", *words, "--quiet"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GCLOUD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraError(f"gcloud {' '.join(words[:2])}: {error}") from error
    if done.returncode == 0:
        return GcloudResult(True, done.stdout.strip())
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return GcloudResult(False, printable((errors or lines or [f"exit code {done.returncode}"])[0])[:300])


def ask_lines(*words: str) -> list[str]:
    """What it lists; nothing where it may not."""
    said = ask(*words)
    return [line.strip() for line in said.text.splitlines() if line.strip()] if said.succeeded else []


def show(*words: str) -> bool:
    """Run gcloud at the user's terminal, e.g. to sign in."""
    return subprocess.run(["gcloud", *words], check=False).returncode == 0


class Probe(NamedTuple):
    service: str
    ask: Callable[[], str]
    """What there is in a few words; UserError or InfraError with what is wrong and how to fix it."""


def probes(settings: GcpSettings, *, make_bucket: bool) -> list[Probe]:
    """`make_bucket`: where there is none yet; else that is only told."""

    def compute() -> str:
        Compute(settings).check_zone()
        return f"zone {settings.zone}, {settings.machine_type} machines for agents, {_git(settings)}"

    def batch() -> str:
        jobs = BatchJobs().list_ours(settings)
        return f"region {settings.region}, {len(jobs)} of our jobs"

    def storage() -> str:
        if make_bucket:
            open_bucket(settings)
            return f"bucket {settings.bucket}"
        client = storage_client(settings)
        with faults(f"looking for the bucket {settings.bucket}"):
            there = client.lookup_bucket(settings.bucket) is not None
        return f"bucket {settings.bucket}" + ("" if there else ", which the first evaluation makes")

    return [Probe("Compute Engine", compute), Probe("Batch", batch), Probe("Cloud Storage", storage)]


def _git(settings: GcpSettings) -> str:
    """Nothing is wrong where a git server cannot be: most runs need none."""
    if settings.git == "carried":
        return "commits of --git carried by the harness"
    try:
        Firewall(settings).listed()
    except CooperBenchError:
        return f"no git server for --git (that needs {ROLE}, or set GCP_GIT=carried)"
    return f"{settings.git_machine_type} for the git server of --git"
