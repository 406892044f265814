"""The division of work in the options of a run: how many agents, with which features, and where.

One agent is setting solo, and as many agents as features are the default, so that each division of
work is written in one way however the user asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cooperbench import records
from cooperbench.dataset.assignment import (
    EVEN,
    SPLITS,
    assign_features,
    check_agent_count,
    parse_split,
    split_features,
)
from cooperbench.dataset.coupling import CouplingReader
from cooperbench.errors import UserError
from cooperbench.models import Assignment, Pair, agent_slots
from cooperbench.records import JsonObject
from cooperbench.records.result import PairResult
from cooperbench.runner.options import RunOptions
from cooperbench.storage import PairPaths


def divide_work(values: JsonObject) -> JsonObject:
    """Return setting, features, number of agents and split of a call, each written in one way."""
    division = {
        "setting": values.get("setting", "coop"),
        "features": values["features"],
        "agent_count": values.get("agent_count"),
        "split": values.get("split", EVEN),
    }
    if isinstance(division["split"], str):
        division |= _read_explicit_split(values, division)
    count, features = division["agent_count"], division["features"]
    if count == 1:
        return division | {"setting": "solo", "agent_count": None, "split": EVEN}
    has_one_group = features is not None and values["group_sizes"] is None
    if has_one_group and count == len(features) and division["split"] in SPLITS:
        return division | {"agent_count": None, "split": EVEN}
    return division


def _read_explicit_split(values: JsonObject, division: JsonObject) -> JsonObject:
    """Return what a list of features per agent says; empty if the split is not one.

    It also says which features are meant, if nothing else does.
    """
    explicit = parse_split(division["split"])
    if explicit is None:
        return {}
    check_agent_count(explicit, division["agent_count"])
    texts = [",".join(str(number) for number in feature_ids) for feature_ids in explicit]
    stated = {"agent_count": len(explicit), "split": "/".join(texts)}
    selection = (values["features"], values["group_sizes"], values.get("subset"))
    if selection == (None, None, None):
        stated["features"] = tuple(split_features(explicit))
    return stated


def check_division(options: RunOptions) -> None:
    """Raise UserError for a division of work that the setting cannot have."""
    if options.setting == "solo" and options.agent_count is not None:
        raise UserError(
            f"setting solo has one agent: leave out --agents {options.agent_count}, "
            "or choose setting coop or team"
        )
    if options.split != EVEN and options.setting == "solo":
        raise UserError("--split is for several agents; setting solo has one")
    if options.split != EVEN and options.agent_count is None:
        raise UserError(
            f"--split {options.split} needs --agents N with -f or --group-size: "
            "with one feature per agent there is nothing to split"
        )
    if options.workspace == "shared":
        _check_shared_workspace(options)


def _check_shared_workspace(options: RunOptions) -> None:
    if options.setting == "solo":
        raise UserError("--workspace shared is for several agents; setting solo has one")
    if options.git_enabled:
        raise UserError(
            "--git does not go with --workspace shared: "
            "agents that work on one tree have nothing to push or to merge"
        )


def assign_pairs(options: RunOptions, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return the pairs with their workspace and the features of each agent.

    Raises:
        UserError: There are more agents than features, or the split is of other features.
    """
    pairs = [replace(pair, workspace=options.workspace) for pair in pairs]
    if options.setting == "solo" or options.agent_count is None:
        return tuple(pairs)
    reader = CouplingReader()
    assigned = []
    for pair in pairs:
        assignment = assign_features(pair, options.agent_count, options.split, reader)
        assigned.append(replace(pair, assignment=assignment))
    return tuple(assigned)


def recorded_assignment(paths: PairPaths, pair: Pair) -> Assignment | None:
    """Return the features of each agent in result.json; None if each agent has one, or in solo."""
    result = records.read(paths.result, PairResult)
    agents = result.agents if result is not None else {}
    if "solo" in agents or not agents:
        return None
    assignment = tuple(tuple(agent.feature_ids) for agent in agents.values())
    is_default = assignment == tuple((number,) for number in pair.feature_ids)
    is_complete = split_features(assignment) == list(pair.feature_ids)
    return assignment if is_complete and not is_default else None


def as_recorded(paths: PairPaths, pair: Pair) -> Pair:
    """Return a pair with the workspace and the division of work that its result.json has."""
    result = records.read(paths.result, PairResult)
    is_shared = result is not None and result.shared is not None
    return replace(
        pair,
        assignment=recorded_assignment(paths, pair),
        workspace="shared" if is_shared else "separate",
    )


def check_recorded_assignment(options: RunOptions, paths: PairPaths, pair: Pair) -> None:
    """Raise UserError if the agents of a finished pair had other features."""
    if options.setting == "solo" or recorded_assignment(paths, pair) == pair.assignment:
        return
    features = [
        ",".join(str(number) for number in slot.feature_ids)
        for slot in agent_slots(pair, options.setting)
    ]
    raise UserError(
        f"{pair.label} has a result of agents with other features than {'/'.join(features)}; "
        "choose another name (-n) or use --force"
    )
