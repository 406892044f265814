"""What a task's image is called, and which commit its repository stands on.

Names come from a template, as the dataset's seeds and the published images differ. Nothing is built or pulled
here, and the commit is read from the task's scripts, never from a repository.
"""

from __future__ import annotations

import os
import re
import string
from itertools import pairwise
from typing import TYPE_CHECKING

from cooperbench.errors import UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.models import Task

ENVIRONMENT_VARIABLE = "COOPERBENCH_IMAGE_TEMPLATE"
DEFAULT_TEMPLATE = "cooperbench/{repo}:task{task_id}"
PUBLISHED_TEMPLATE = "akhatua/cooperbench-{short}:task{task_id}"
NAMED_TEMPLATES = {"seeds": DEFAULT_TEMPLATE, "published": PUBLISHED_TEMPLATE}
_PLACEHOLDERS = ("repo", "short", "task_id")


def image_name(task: Task, template: str | None = None) -> str:
    """The image of a task, by the template given, else $COOPERBENCH_IMAGE_TEMPLATE, else the default one."""
    return _fill(image_template(template), task)


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


def _fill(template: str, task: Task) -> str:
    short = task.repo.removesuffix("_task").replace("_", "-")
    return template.format(repo=task.repo, short=short, task_id=task.task_id)


_COMMIT = re.compile(r"[0-9a-f]{7,40}", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^}]*))?\}|(\w+))")
_ASSIGNMENT = re.compile(r"(\w*(?:COMMIT|REVISION|SHA|REF)\w*)=(.*)", re.IGNORECASE)
_ARCHIVE = re.compile(r"/(?:archive|tarball|zipball|tar\.gz)/([0-9a-f]{40})\b", re.IGNORECASE)
_COMMAND_END = re.compile(r"&&|\|\||[;|\n(){}`]")
_VARIABLE_BRACES = re.compile(r"\$\{[^}\n]*\}")
_CHECKOUTS = ("checkout", "reset", "switch", "fetch", "clone", "worktree")
_NUMBER_OPTIONS = ("--depth", "--deepen", "--jobs", "-j")


def base_commit(task: Task) -> str | None:
    """The commit that the task's features are built on, as its setup.sh, else its Dockerfile, names it."""
    for path in (task.setup_script, task.dockerfile):
        try:
            script = path.read_text("utf-8", "replace")
        except OSError:
            continue
        commit = _commit_in(script)
        if commit is not None:
            return commit
    return None


def _commit_in(script: str) -> str | None:
    """A variable named like the base commit, else what git checks out, else any other commit named."""
    variables: dict[str, str] = {}
    checked_out: list[str] = []
    for words in _commands(script):
        _take_assignments(words, variables)
        checked_out += _git_revisions(words, variables)
    base = [commit for name, commit in variables.items() if "BASE" in name.upper()]
    others = [commit for name, commit in variables.items() if "COMMIT" in name.upper()]
    archives = [match[1] for match in _ARCHIVE.finditer(script)]
    for candidates in (base, checked_out, others, archives):
        if candidates:
            # An abbreviation may be somebody's branch; a full id never is.
            return max(candidates, key=lambda commit: len(commit) == 40).lower()
    return None


def _commands(script: str) -> Iterator[list[str]]:
    """The words of each simple command, unquoted; comments gone, continued lines joined."""
    kept = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(kept))
    # The braces of ${…} are no grouping: hide them from the split.
    hidden = _VARIABLE_BRACES.sub(lambda match: f"\x01{match[0][2:-1]}\x02", joined)
    for command in _COMMAND_END.split(hidden):
        words = re.split(r"[\s,]+", command.replace("\x01", "${").replace("\x02", "}").strip())
        comment = next((place for place, word in enumerate(words) if word.startswith("#")), len(words))
        yield [word.strip("\"'[]") for word in words[:comment]]


def _take_assignments(words: list[str], variables: dict[str, str]) -> None:
    """`NAME=commit` anywhere, Docker's older `ENV NAME commit`, and a default that the shell assigns."""
    pairs = [(match[1], match[2]) for word in words if (match := _ASSIGNMENT.fullmatch(word))]
    if len(words) == 3 and words[0].upper() == "ENV" and "=" not in words[1]:
        pairs.append((words[1], words[2]))
    if words[:1] == [":"]:  # the shell's `: "${NAME:=commit}"`
        pairs += [(match[1], word) for word in words if (match := _VARIABLE.fullmatch(word)) and match[1]]
    for name, value in pairs:
        commit = _as_commit(value.strip("\"'"), variables)
        if commit is not None:
            variables.setdefault(name, commit)


def _git_revisions(words: list[str], variables: dict[str, str]) -> Iterator[str]:
    """The commits that a git command moves to or gets."""
    if "git" not in words:
        return
    rest = words[words.index("git") + 1 :]
    verb = next((place for place, word in enumerate(rest) if word in _CHECKOUTS), None)
    if verb is None:
        return
    for before, word in pairwise(rest[verb:]):
        if before in _NUMBER_OPTIONS:
            continue
        commit = _as_commit(word.removeprefix("--revision=").strip("\"'"), variables)
        if commit is not None:
            yield commit


def _as_commit(text: str, variables: dict[str, str]) -> str | None:
    variable = _VARIABLE.fullmatch(text)
    if variable is not None:
        known = variables.get(variable[1] or variable[3] or "")
        return known or _as_commit(variable[2] or "", {})
    return text if _COMMIT.fullmatch(text) else None
