"""`cooperbench schema`: the JSON Schema of the files under logs/."""

from __future__ import annotations

import argparse

from cooperbench.cli import arguments
from cooperbench.errors import UserError
from cooperbench.text import names_for_error


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench schema`."""
    text = "name of the file without .json, e.g. result (default: list all names)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=text)


def print_schema(args: argparse.Namespace) -> int:
    """Print the JSON Schema of one kind of file, or the names of all."""
    from cooperbench.records.schema import RECORDS, json_schema

    if args.name is None:
        for name, record in RECORDS.items():
            arguments.print_line(f"{name:<14} {record.SCHEMA}")
        return 0
    name = args.name.removesuffix(".json")
    if name not in RECORDS:
        raise UserError(f"no schema {name!r}; available: {names_for_error(RECORDS, name)}")
    arguments.print_json(json_schema(name))
    return 0


COMMANDS = {"schema": (add_schema_arguments, print_schema)}
