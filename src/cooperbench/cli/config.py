"""`cooperbench config`: the settings in the user's file."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.settings import config_file, load_settings, save_setting

if TYPE_CHECKING:
    import argparse

KEYS = {"backend": "the backend of `run` and `eval` unless --backend says otherwise"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print the file's place and its content")
    change = actions.add_parser(
        "set", help="set a value: " + "; ".join(f"{key}, {text}" for key, text in KEYS.items())
    )
    change.add_argument("key", choices=sorted(KEYS))
    change.add_argument("value")
    remove = actions.add_parser("unset", help="remove a value")
    remove.add_argument("key", choices=sorted(KEYS))
    gcp = actions.add_parser("gcp", help="set up Google Cloud")
    gcp.add_argument("--skip-tests", action="store_true", help="do not probe the APIs")


def execute(args: argparse.Namespace) -> int:
    if args.action == "gcp":
        raise UserError(
            "config gcp: the Google Cloud backend is not part of this version yet; use --backend local"
        )
    if args.action == "set":
        save_setting(args.key, args.value)
    elif args.action == "unset":
        save_setting(args.key, None)
    sys.stdout.write(f"{config_file()}\n{json.dumps(load_settings(), indent=2)}\n")
    return 0
