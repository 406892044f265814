"""A `gcloud` for tests: what it answers stands in state.json of the folder in $GCLOUD_STATE, what it was told in told.txt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

folder = Path(os.environ["GCLOUD_STATE"])
state = json.loads((folder / "state.json").read_text())
words = [word for word in sys.argv[1:] if word != "--quiet"]
with (folder / "told.txt").open("a") as told:
    told.write(" ".join(words) + "\n")


def answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.exit(0)


def refuse(text: str) -> None:
    sys.stderr.write(f"ERROR: (gcloud) {text}\n")
    sys.exit(1)


match words:
    case ["auth", "list", *_]:
        answer(state["account"])
    case ["auth", "login"]:
        state["account"] = "me@example.org"
    case ["auth", "application-default", "print-access-token"]:
        answer("token") if state["credentials"] else refuse("no credentials")
    case ["auth", "application-default", "login"]:
        state["credentials"] = True
    case ["services", "list", *_]:
        answer("\n".join(state["apis"]))
    case ["services", "enable", *apis]:
        state["apis"] += [name for name in apis if not name.startswith("-")]
    case ["config", "get-value", *_]:
        answer("(unset)")
    case _:
        refuse(f"Invalid choice: {words}")
(folder / "state.json").write_text(json.dumps(state))
