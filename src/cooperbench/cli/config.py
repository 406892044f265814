"""`cooperbench config`: the settings in the user's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.cli.arguments import print_json, print_line
from cooperbench.settings import checked_eval_network, config_file, load_settings, save_setting

if TYPE_CHECKING:
    import argparse

KEYS = {
    "backend": "the backend of `run` and `eval` unless --backend says otherwise",
    "eval_network": "what test runs reach unless --eval-network says otherwise: auto, none or public",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print the file's place and its content")
    meanings = "; ".join(f"{key}, {text}" for key, text in KEYS.items())
    change = actions.add_parser("set", help=f"set a value: {meanings}")
    change.add_argument("key", choices=sorted(KEYS))
    change.add_argument("value")
    remove = actions.add_parser("unset", help="remove a value")
    remove.add_argument("key", choices=sorted(KEYS))
    gcp = actions.add_parser("gcp", help="set up Google Cloud")
    gcp.add_argument("--project", metavar="ID", help="the project that pays")
    gcp.add_argument("--region", help="where evaluations run, e.g. us-central1")
    gcp.add_argument("--zone", help="where agents' machines are, e.g. us-central1-a")
    gcp.add_argument("--bucket", help="in Cloud Storage, for the inputs and results of evaluations")
    gcp.add_argument("--machine-type", metavar="TYPE", help="e.g. e2-standard-8")
    silent = "ask nothing: take the defaults, enable the APIs"
    gcp.add_argument("-y", "--yes", action="store_true", help=silent)
    gcp.add_argument("--skip-tests", action="store_true", help="do not probe the APIs")


def execute(args: argparse.Namespace) -> int:
    if args.action == "gcp":
        return _set_up_gcp(args)
    if args.action == "set":
        if args.key == "eval_network":
            checked_eval_network(args.value)
        save_setting(args.key, args.value)
    elif args.action == "unset":
        save_setting(args.key, None)
    print_line(str(config_file()))
    print_json(load_settings())
    return 0


def _set_up_gcp(args: argparse.Namespace) -> int:
    from cooperbench.backends.gcp import require_clients
    from cooperbench.backends.gcp.wizard import set_up

    if not args.skip_tests:
        require_clients()
    given = {name: getattr(args, name) for name in ("project", "region", "zone", "bucket", "machine_type")}
    return 0 if set_up(given, yes=args.yes, skip_tests=args.skip_tests) else 1
