"""`cooperbench author describe`: drafts of descriptions."""

from __future__ import annotations

import argparse
from pathlib import Path

from cooperbench.author.drafts import (
    Draft,
    draft_by_model,
    draft_from_history,
    read_material,
    save_draft,
)
from cooperbench.author.task_files import find_task
from cooperbench.author.task_info import feature_info
from cooperbench.cli import arguments
from cooperbench.cli.author_arguments import TASK_HELP, Action, dataset_folder
from cooperbench.errors import AgentFailure, InfraError, UserError
from cooperbench.models import Feature, Task
from cooperbench.text import dollars_text, names_for_error, plural


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    features = "only these features (default: those whose description nobody has accepted)"
    parser.add_argument(
        "features", nargs="?", type=arguments.number_list, metavar="1,2", help=features
    )
    model = "a model that writes the drafts (default: none, from commit messages)"
    parser.add_argument("-m", "--model", metavar="MODEL", help=model)
    context = "a text about the feature, e.g. of its pull request; for one feature"
    parser.add_argument("--context", type=Path, metavar="FILE", help=context)
    repo = "the clone with the commits (default: that of author init)"
    parser.add_argument("--repo", type=Path, metavar="REPO", help=repo)
    arguments.add_dataset_argument(parser)
    arguments.add_json_argument(parser)


def describe(args: argparse.Namespace) -> int:
    """Write drafts; return 1 if one could not be written or still has problems."""
    task = find_task(dataset_folder(args), args.task)
    features = _selected_features(task, args.features)
    context = ""
    if args.context:
        if len(features) != 1:
            raise UserError("--context is about one feature: name it, e.g. TASK 1")
        try:
            context = args.context.read_text("utf-8", "replace")
        except OSError as error:
            raise UserError(f"{args.context} cannot be read: {error.strerror}") from error
    if not features:
        arguments.print_note(f"note: all descriptions of {task.label} are accepted")
    content = []
    ok = True
    for feature in features:
        entry = _describe(feature, args, context)
        ok = ok and not entry["problems"]
        content.append(entry)
    if args.json:
        arguments.print_json({"task": task.label, "ok": ok, "features": content})
    return 0 if ok else 1


def _selected_features(task: Task, numbers: list[int] | None) -> list[Feature]:
    if numbers is None:
        drafts = []
        for feature in task.features:
            info = feature_info(feature)
            if info is None or info.is_draft:
                drafts.append(feature)
        return drafts
    unknown = [str(number) for number in numbers if number not in task.feature_ids]
    if unknown:
        labels = names_for_error(str(number) for number in task.feature_ids)
        raise UserError(f"{task.label} has no feature {', '.join(unknown)}; there are: {labels}")
    return [task.feature(number) for number in numbers]


def _describe(feature: Feature, args: argparse.Namespace, context: str) -> dict[str, object]:
    """Write the draft of one feature and print what is wrong with it."""
    label = f"{feature.task.label}/feature{feature.feature_id}"
    material = read_material(feature, args.repo, context)
    try:
        if args.model:
            draft = draft_by_model(material, args.model, arguments.print_note)
        else:
            draft = draft_from_history(material)
    except (InfraError, AgentFailure) as error:
        arguments.print_note(f"{label}: no draft: {error}")
        return {"feature": feature.feature_id, "written": False, "problems": [str(error)]}
    written = _is_usable(draft)
    if written:
        save_draft(feature, draft)
    if not args.json:
        _print_draft(label, draft, args.model, written=written)
    return {
        "feature": feature.feature_id,
        "written": written,
        "problems": draft.problems,
        "cost": draft.usage.cost,
    }


def _is_usable(draft: Draft) -> bool:
    """Whether a draft shows no code; names that are missing can be added by a person."""
    shows_code = any("is code of" in problem for problem in draft.problems)
    return bool(draft.text.strip()) and not shows_code


def _print_draft(label: str, draft: Draft, model: str | None, *, written: bool) -> None:
    word_count = plural(len(draft.text.split()), "word")
    cost = f", {dollars_text(draft.usage.cost)}" if model else ""
    state = f"a draft of {word_count}{cost}; read it, then accept it" if written else "rejected"
    arguments.print_line(f"{label}: {state}")
    for problem in draft.problems:
        arguments.print_line(f"  {problem}")


ACTION = Action("draft descriptions from history, or by a model", _add_arguments, describe)
