"""Drafts of descriptions: from commit messages, or by a model that also reads the patches.

A draft names everything that the hidden tests need and shows no code of the golden patch. It stays
a draft until a person accepts it (`author accept`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from cooperbench.author.change_text import ChangeText, read_change_text
from cooperbench.author.descriptions import describe_use, find_problems, without_code_of
from cooperbench.author.names import missing_names
from cooperbench.author.split import find_git_dir, resolve_commit
from cooperbench.author.task_info import FeatureInfo, feature_info, read_task_info, set_draft
from cooperbench.errors import UserError
from cooperbench.models import Feature, Usage
from cooperbench.storage import read_bytes, write_text
from cooperbench.text import head_and_tail

PROMPT = files(__package__).joinpath("describe_prompt.txt").read_text(encoding="utf-8").strip()
MAX_ANSWERS = 3
"""Number of times that a model is asked for a description without problems."""
_ANSWER_TOKENS = 3_000
_PATCH_CHARACTERS = 40_000
_TEXT_CHARACTERS = 10_000
_COMMIT_SOURCE = "commit "


@dataclass(frozen=True)
class Material:
    """The texts and patches that a draft is made from."""

    text: ChangeText
    golden: bytes
    tests: bytes
    context: str = ""
    """More about the change, for example the text of a pull request."""


@dataclass(frozen=True)
class Draft:
    """A description, and what is still wrong with it."""

    text: str
    problems: list[str]
    usage: Usage = field(default_factory=Usage)


def read_material(feature: Feature, repo: Path | None = None, context: str = "") -> Material:
    """Return the patches of a feature, and what the history says about it.

    Args:
        feature: The feature.
        repo: The clone with its commit; by default the one that the task was made from.
        context: More about the change.
    """
    info = feature_info(feature)
    golden = read_bytes(feature.patch, follow_link=True) or b""
    tests = read_bytes(feature.tests, follow_link=True) or b""
    return Material(_history_of(feature, info, repo), golden, tests, context.strip())


def _history_of(feature: Feature, info: FeatureInfo | None, repo: Path | None) -> ChangeText:
    title = info.title if info and info.title else f"Feature {feature.feature_id}"
    is_commit = info is not None and info.source.startswith(_COMMIT_SOURCE)
    clone = repo
    if clone is None:
        try:
            clone_path = read_task_info(feature.task).clone
        except UserError:
            clone_path = ""
        clone = Path(clone_path) if clone_path else None
    if info is None or not is_commit or clone is None or not clone.is_dir():
        return ChangeText(title, "")
    try:
        git_dir = find_git_dir(clone)
        commit = resolve_commit(git_dir, info.source.removeprefix(_COMMIT_SOURCE))
    except UserError:
        return ChangeText(title, "")
    return read_change_text(git_dir, commit)


def draft_from_history(material: Material) -> Draft:
    """Return a draft without a model: the commit message, and the interface that tests use."""
    parts = [material.text.draft.rstrip()]
    if material.context:
        parts.append(material.context)
    text = without_code_of("\n\n".join(parts), material.golden, material.tests)
    text = add_interface(text, material)
    return Draft(text, find_problems(text, material.golden, material.tests))


def add_interface(text: str, material: Material) -> str:
    """Add what the hidden tests use and the text does not name: signatures, names, messages."""
    missing = missing_names(material.golden, material.tests, text)
    if not missing:
        return text.rstrip() + "\n"
    lines = []
    for item in missing:
        if item.kind == "text":
            lines.append(f"- the text `{item.name.name}`")
        elif item.name.signature:
            lines.append(f"- `{item.name.signature}`")
        else:
            lines.append(f"- `{item.name.label}`")
    heading = "## Interface\n\nThese names and texts have to be as they are here:\n\n"
    with_signatures = f"{text.rstrip()}\n\n{heading}" + "\n".join(lines) + "\n"
    still_missing = missing_names(material.golden, material.tests, with_signatures)
    # A signature need not have the name in a form that counts.
    added = [f"- `{item.name.name}`" for item in still_missing]
    return "\n".join([with_signatures.rstrip(), *added]) + "\n"


def draft_by_model(
    material: Material, model: str, note: Callable[[str], None] = lambda _: None
) -> Draft:
    """Return a draft by a model, which gets its problems back until there are none.

    Names that are still missing then are added as a list.

    Raises:
        UserError: The model or its key cannot be used.
        InfraError: The provider cannot be reached.
        AgentFailure: The material is too long, or the model refuses.
    """
    from cooperbench.agents.llm import ask_for_text, check_model, warm_up

    check_model(model, {})
    warm_up()
    messages = [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": describe_material(material)},
    ]
    usage = Usage()
    text = ""
    problems = ["the model gave no answer"]
    for number in range(1, MAX_ANSWERS + 1):
        answer = ask_for_text(model, messages, _ANSWER_TOKENS, first_call=number == 1)
        usage += answer.usage
        text = _strip_fence(answer.text)
        problems = find_problems(text, material.golden, material.tests)
        if not problems:
            break
        note(f"answer {number}: {'; '.join(problems)}")
        messages.append({"role": "assistant", "content": answer.text})
        complaint = "Write it again in whole. These things are wrong with it:\n- "
        messages.append({"role": "user", "content": complaint + "\n- ".join(problems)})
    if problems and text.strip():
        text = add_interface(text, material)
        problems = find_problems(text, material.golden, material.tests)
    return Draft(text, problems, usage)


def describe_material(material: Material) -> str:
    """Return what the model gets to read."""
    history = [material.text.title, material.text.body, *material.text.messages]
    names = [describe_use(item) for item in missing_names(material.golden, material.tests, "")]
    golden = material.golden.decode("utf-8", "replace")
    tests = material.tests.decode("utf-8", "replace")
    parts = {
        "What the history says": "\n".join(line for line in history if line),
        "More about it": material.context,
        "What the hidden tests need": "\n".join(f"- {name}" for name in names),
        "The golden patch": head_and_tail(golden, _PATCH_CHARACTERS),
        "The hidden tests": head_and_tail(tests, _PATCH_CHARACTERS),
    }
    sections = []
    for title, content in parts.items():
        if content.strip():
            limit = _PATCH_CHARACTERS if "patch" in title or "tests" in title else _TEXT_CHARACTERS
            sections.append(f"=== {title} ===\n{head_and_tail(content, limit)}")
    # Unpaired surrogates cannot be sent.
    return "\n\n".join(sections).encode("utf-8", "replace").decode()


def _strip_fence(answer: str) -> str:
    """Return an answer without the code fence that some models put around a document."""
    text = answer.strip()
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        text = text.partition("\n")[2].removesuffix("```").strip()
    return f"{text}\n" if text else ""


def save_draft(feature: Feature, draft: Draft) -> None:
    """Write feature.md, and mark it as a draft."""
    write_text(feature.description, draft.text)
    set_draft(feature, is_draft=True)
