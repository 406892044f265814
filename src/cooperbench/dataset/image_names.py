"""The image name of a task, and the commit that its repository is at.

Image names come from a template, because the seed datasets and the published images differ.
Nothing is built or pulled here. The commit is read from the task's scripts, not from a repository.
"""

from __future__ import annotations

import os
import re
import string

from cooperbench.errors import UserError
from cooperbench.models import Task
from cooperbench.text import printable

ENVIRONMENT_VARIABLE = "COOPERBENCH_IMAGE_TEMPLATE"
DEFAULT_TEMPLATE = "cooperbench/{repo}:task{task_id}"
PUBLISHED_TEMPLATE = "akhatua/cooperbench-{short}:task{task_id}"
NAMED_TEMPLATES = {"seeds": DEFAULT_TEMPLATE, "published": PUBLISHED_TEMPLATE}
_PLACEHOLDERS = ("repo", "short", "task_id")


def image_name(task: Task, template: str | None = None) -> str:
    """Return the image name of a task.

    The default template is $COOPERBENCH_IMAGE_TEMPLATE, then `DEFAULT_TEMPLATE`.
    """
    short = task.repo.removesuffix("_task").replace("_", "-")
    return image_template(template).format(repo=task.repo, short=short, task_id=task.task_id)


def image_template(template: str | None = None) -> str:
    """Return the template to use; UserError if it has other placeholders than those allowed."""
    template = template or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_TEMPLATE
    template = NAMED_TEMPLATES.get(template, template)
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"image template {printable(template)!r}: {error}") from None
    for _, name, format_spec, conversion in fields:
        if name is not None and (name not in _PLACEHOLDERS or format_spec or conversion):
            allowed = ", ".join(f"{{{placeholder}}}" for placeholder in _PLACEHOLDERS)
            raise UserError(
                f"image template {printable(template)!r} has an unknown placeholder"
                f" {{{printable(name)}}}; available: {allowed},"
                f" or the templates {', '.join(NAMED_TEMPLATES)}"
            )
    return template


_ASSIGNMENT = r"[:=\s\"']+(?:\$\{\w+:?[-=])?"
"""An assignment in a shell script or a Dockerfile, perhaps of a variable with a default."""
_BEFORE_COMMIT = (
    rf"BASE_COMMIT{_ASSIGNMENT}",
    r"\bgit\b[^\n;&|]*?\b(?:checkout|reset|switch|fetch|clone)\b[^\n;&|]*?[\s\"'=]",
    rf"(?:COMMIT|REVISION|SHA|REF)\w*{_ASSIGNMENT}",
    r"/(?:archive|tarball|zipball|tar\.gz)/",
)
"""Patterns of the text before a commit id in a script, the most reliable first."""
_COMMIT_IDS = (
    "[0-9a-f]{40}",
    # An abbreviated id contains a letter: a number alone is the depth of a clone.
    "(?=[0-9]*[a-f])[0-9a-f]{7,39}",
)
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*")
_CONTINUED_LINE = re.compile(r"\\\s*\n")


def base_commit(task: Task) -> str | None:
    """Return the commit that the features of a task are based on.

    It is read from the task's setup.sh or, if it is not there, from its Dockerfile.
    """
    for path in (task.setup_script, task.dockerfile):
        try:
            script = path.read_text("utf-8", "replace")
        except OSError:
            continue
        script = _COMMENT.sub("", script)
        script = _CONTINUED_LINE.sub(" ", script)
        commit = _find_commit(script)
        if commit is not None:
            return commit
    return None


def _find_commit(script: str) -> str | None:
    for before in _BEFORE_COMMIT:
        for commit_id in _COMMIT_IDS:
            pattern = rf"{before}({commit_id})(?![0-9a-z])"
            if match := re.search(pattern, script, re.IGNORECASE):
                return match[1].lower()
    return None
