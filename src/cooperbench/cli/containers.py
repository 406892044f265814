"""Arguments about task images and containers, shared by `run`, `eval` and `images`.

Backends are made by their names alone, so what is given here reaches them by the variables that they read anyway. A
flag that a backend would not heed is refused.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from cooperbench.backends.registry import OUR_BACKENDS, flags_of
from cooperbench.dataset.images import ENVIRONMENT_VARIABLE, image_template
from cooperbench.errors import UserError

if TYPE_CHECKING:
    import argparse
    from argparse import _ArgumentGroup

PULL_POLICIES = ("missing", "always", "never")


def add_container_arguments(group: argparse.ArgumentParser | _ArgumentGroup) -> None:
    add_template_argument(group)
    group.add_argument(
        "--pull",
        choices=PULL_POLICIES,
        help="when images are fetched from their registry (docker only; default: missing)",
    )
    group.add_argument(
        "--mount",
        action="append",
        metavar="SOURCE:TARGET[:rw]",
        help="a folder of this machine in every container, for debugging (docker only; repeatable)",
    )
    group.add_argument(
        "--gpu",
        metavar="TYPE",
        help="a GPU for every sandbox, e.g. T4 or A100-80GB:2 (if the backend has GPUs)",
    )


def add_template_argument(group: argparse.ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument(
        "--image-template",
        metavar="NAME",
        help="what task images are called: text with {repo}, {short} and {task_id}, or seeds, or published",
    )


def use_container_arguments(args: argparse.Namespace, backend: str) -> None:
    """Check them against the backend and put them in force for this process."""
    given = {"--mount": shlex.join(args.mount or ()), "--pull": args.pull, "--gpu": args.gpu}
    given = {flag: value for flag, value in given.items() if value}
    for flag in given:
        if flag not in flags_of(backend):
            others = " or ".join(name for name in OUR_BACKENDS if flag in flags_of(name))
            raise UserError(f"{flag} is for --backend {others}, not {backend}")
    if args.image_template and backend == "local":
        raise UserError("--image-template is not for --backend local, which prepares tasks by their setup.sh")
    use_template_argument(args)
    if args.mount:
        from cooperbench.backends.docker.settings import read_mount

        for mount in args.mount:
            read_mount(mount)
    for flag, value in given.items():
        os.environ[flags_of(backend)[flag]] = value


def use_template_argument(args: argparse.Namespace) -> None:
    if args.image_template:
        os.environ[ENVIRONMENT_VARIABLE] = image_template(args.image_template)
