"""What a task's image is called, and which commit its repository stands on.

Names come from a template, as the dataset's seeds and the published images differ. Nothing is built or pulled
here, and the commit is read from the task's scripts, never from a repository.
"""

from __future__ import annotations

import os
import re
import string
from itertools import product

from cooperbench.errors import UserError
from cooperbench.models import Task
from cooperbench.text import printable

ENVIRONMENT_VARIABLE = "COOPERBENCH_IMAGE_TEMPLATE"
DEFAULT_TEMPLATE = "cooperbench/{repo}:task{task_id}"
PUBLISHED_TEMPLATE = "akhatua/cooperbench-{short}:task{task_id}"
NAMED_TEMPLATES = {"seeds": DEFAULT_TEMPLATE, "published": PUBLISHED_TEMPLATE}
_PLACEHOLDERS = ("repo", "short", "task_id")


def image_name(task: Task, template: str | None = None) -> str:
    """The image of a task, by the template given, else $COOPERBENCH_IMAGE_TEMPLATE, else the default one."""
    short = task.repo.removesuffix("_task").replace("_", "-")
    return image_template(template).format(repo=task.repo, short=short, task_id=task.task_id)


def image_template(template: str | None = None) -> str:
    """The template in force, checked: literal text with {repo}, {short} and {task_id}."""
    chosen = template or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_TEMPLATE
    chosen = NAMED_TEMPLATES.get(chosen, chosen)
    try:
        parts = list(string.Formatter().parse(chosen))
    except ValueError as error:
        raise UserError(f"image template {printable(chosen)!r}: {error}") from None
    for _, name, form, conversion in parts:
        if name is not None and (name not in _PLACEHOLDERS or form or conversion):
            known = ", ".join(f"{{{placeholder}}}" for placeholder in _PLACEHOLDERS)
            raise UserError(
                f"image template {printable(chosen)!r} has an unknown placeholder {{{printable(name)}}};"
                f" there is: {known}, or the templates {', '.join(NAMED_TEMPLATES)}"
            )
    return chosen


_ASSIGNED = r"[:=\s\"']+(?:\$\{\w+:?[-=])?"
_PLACES = (
    rf"BASE_COMMIT{_ASSIGNED}",
    r"\bgit\b[^\n;&|]*?\b(?:checkout|reset|switch|fetch|clone)\b[^\n;&|]*?[\s\"'=]",
    rf"(?:COMMIT|REVISION|SHA|REF)\w*{_ASSIGNED}",
    r"/(?:archive|tarball|zipball|tar\.gz)/",
)
"""What stands before a commit in a script, the likeliest first."""
# An abbreviation has a letter in it: a number is the depth of a clone.
_IDS = ("[0-9a-f]{40}", "(?=[0-9]*[a-f])[0-9a-f]{7,39}")


def base_commit(task: Task) -> str | None:
    """The commit that the task's features are built on, as its setup.sh, else its Dockerfile, names it."""
    for path in (task.setup_script, task.dockerfile):
        try:
            script = path.read_text("utf-8", "replace")
        except OSError:
            continue
        script = re.sub(r"(?m)(?:^|(?<=\s))#.*", "", script)
        script = re.sub(r"\\\s*\n", " ", script)
        for place, form in product(_PLACES, _IDS):
            if found := re.search(rf"{place}({form})(?![0-9a-z])", script, re.IGNORECASE):
                return found[1].lower()
    return None
