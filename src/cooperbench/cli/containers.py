"""`--image-template` of `cooperbench images`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cooperbench.dataset.images import ENVIRONMENT_VARIABLE, image_template

if TYPE_CHECKING:
    import argparse


def add_template_argument(group: argparse.ArgumentParser) -> None:
    group.add_argument(
        "--image-template",
        metavar="NAME",
        help="what task images are called: text with {repo}, {short} and {task_id}, or seeds, or published",
    )


def use_template_argument(args: argparse.Namespace) -> None:
    if args.image_template:
        os.environ[ENVIRONMENT_VARIABLE] = image_template(args.image_template)
