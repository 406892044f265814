"""The `gcloud` command, as the wizard uses it: asked for what there is, and told to enable and to sign in."""

from __future__ import annotations

import shutil
import subprocess
from typing import NamedTuple

from cooperbench.errors import InfraError, UserError
from cooperbench.text import printable

_SECONDS = 300.0
MISSING = "gcloud is not installed: https://cloud.google.com/sdk/docs/install, and then again: cooperbench config gcp"


class Said(NamedTuple):
    succeeded: bool
    text: str
    """Its stdout, or the last line of its stderr where it failed."""


def require_gcloud() -> str:
    """Its version."""
    if shutil.which("gcloud") is None:
        raise UserError(MISSING)
    said = ask("version", "--format=value('Google Cloud SDK')")
    return said.text if said.succeeded else ""


def ask(*words: str) -> Said:
    """Run it without a terminal."""
    command = ["gcloud", *words, "--quiet"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraError(f"gcloud {' '.join(words[:2])}: {error}") from error
    if done.returncode == 0:
        return Said(True, done.stdout.strip())
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return Said(False, printable((errors or lines or [f"exit code {done.returncode}"])[0])[:300])


def ask_lines(*words: str) -> list[str]:
    """What it lists; nothing where it may not."""
    said = ask(*words)
    return [line.strip() for line in said.text.splitlines() if line.strip()] if said.succeeded else []


def show(*words: str) -> bool:
    """Run it at the user's terminal, e.g. to sign in."""
    return subprocess.run(["gcloud", *words], check=False).returncode == 0
