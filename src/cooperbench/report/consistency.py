"""Whether everything on disk about a run fits together; what does not affects the run's numbers.

Every file is compared with others that say the same: config.json, history.jsonl, result.json,
eval.json and the patches. There is no secret in them, so somebody who changes all of them in the
same way is not found; docs/statistics.md says what that takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.agents.model_names import with_vendor
from cooperbench.models import SHARED
from cooperbench.records.config import ImportSource, RunRecord
from cooperbench.records.evaluation import Evaluation
from cooperbench.records.result import PairResult, RunConditions
from cooperbench.report.history_check import EVALUATION, RESULT, check_history
from cooperbench.report.mismatch import AFFECTS, Findings, Mismatch, name_pairs
from cooperbench.report.pairs import ENDED, EVALUATED, AgentData, PairData, PairKey
from cooperbench.text import printable

if TYPE_CHECKING:
    from cooperbench.report.loading import Run

_CONDITION_OPTIONS = {
    "network": "--network",
    "step_limit": "--step-limit",
    "cost_limit": "--cost-limit",
    "time_limit_seconds": "--time-limit",
    "messaging_enabled": "messaging",
    "git_enabled": "--git",
    "prompts_sha256": "prompts",
    "agent_config_sha256": "the agent config",
    "replay_from": "the replayed run",
    "workspace": "--workspace",
}
_TEAM_PARTS = ("task_list", "scratchpad", "protocol", "mcp", "auto_refresh", "roles")


def find_mismatches(run: Run) -> list[Mismatch]:
    """Return everything about a run that does not fit together, and what cannot be checked."""
    findings = Findings(run.name)
    if run.config is None:
        findings.add_run("unchecked", "cannot be checked: there is no config.json to compare with")
    if run.imported is not None:
        findings.add_run("unchecked", _imported_text(run.imported))
    for pair in run.pairs:
        _check_owner(pair, findings)
    _check_keys(run, findings)
    for pair in run.pairs:
        _check_patches(pair, findings)
        _check_dataset(pair, findings)
        _check_confirmations(pair, findings)
        _check_verdicts(pair, findings)
        if run.config is not None:
            _check_against_config(run, run.config, pair, findings)
    check_history(run, run.config, findings)
    _check_same_conditions(run, findings)
    _check_records(run, findings)
    return findings.mismatches()


def _imported_text(source: ImportSource) -> str:
    return (
        f"cannot be checked: what the agents did, it was imported from {printable(source.folder)}"
        " (see import.json)"
    )


def all_mismatches(runs: Sequence[Run]) -> list[Mismatch]:
    """Return what does not fit together in loaded runs, and between them."""
    mismatches = find_dataset_changes(runs)
    for run in runs:
        mismatches += run.mismatches
    return mismatches


def find_dataset_changes(runs: Sequence[Run]) -> list[Mismatch]:
    """Return the pairs whose dataset files differ between runs that are shown together."""
    first_run_by_pair: dict[PairKey, tuple[Run, str]] = {}
    pairs_by_runs: dict[tuple[str, str], list[PairKey]] = {}
    for run in runs:
        for pair in run.pairs:
            checksum = pair.dataset_sha256
            if checksum is None:
                continue
            first_run, first_checksum = first_run_by_pair.setdefault(pair.key, (run, checksum))
            if checksum != first_checksum and first_run is not run:
                keys = pairs_by_runs.setdefault((first_run.name, run.name), [])
                if pair.key not in keys:
                    keys.append(pair.key)
    return [
        Mismatch(
            kind="dataset",
            runs=names,
            setting=None,
            pairs=tuple(keys),
            affects=AFFECTS["dataset"],
            text=f"the dataset's files differ between these runs: {name_pairs(keys)}",
        )
        for names, keys in pairs_by_runs.items()
    ]


def _check_owner(pair: PairData, findings: Findings) -> None:
    """Find files that were copied from another pair."""
    for record, name in ((pair.result, RESULT), (pair.evaluation, EVALUATION)):
        if record is None or not record.repo:
            continue
        owner = PairKey(record.repo, record.task_id, tuple(record.features))
        if owner != pair.key or record.setting not in ("", pair.setting):
            text = f"{name} is of another pair ({record.setting} {owner.label})"
            findings.add("other_pair", pair, text, name)


def _check_patches(pair: PairData, findings: Findings) -> None:
    """Find patches that are not those that the harness collected."""
    evaluated = pair.evaluation.patches if pair.evaluation else None
    if findings.is_explained(pair, EVALUATION):
        evaluated = None
    checksums = pair.result.patch_checksums if pair.result else {}
    for name in pair.patch_names:
        collected = checksums.get(name)
        if collected is None:
            continue
        if evaluated is not None and evaluated.get(name) != collected:
            text = "the tests ran on another patch than the agents left"
            if name != SHARED:
                text = f"the tests ran on another patch than {name} handed in"
            findings.add("patch", pair, text, EVALUATION)
            continue
        patch = pair.patch(name)
        if patch is None:
            findings.add("unchecked", pair, "the patches are not here")
        elif sha256(patch).hexdigest() != collected:
            findings.add("patch", pair, f"{name}.patch is not the one in result.json")


def _check_dataset(pair: PairData, findings: Findings) -> None:
    """Find pairs whose dataset files changed between the agents' work and its evaluation."""
    result, evaluation = pair.result, pair.evaluation
    if result is None or evaluation is None or findings.is_explained(pair, EVALUATION):
        return
    checksums = {result.dataset_sha256, evaluation.dataset_sha256} - {None}
    if len(checksums) > 1:
        text = "the dataset's files changed between the run and the evaluation"
        findings.add("dataset", pair, text)


def _check_confirmations(pair: PairData, findings: Findings) -> None:
    """Find successes that no confirmation run supports."""
    evaluation = pair.evaluation
    if evaluation is None or pair.state not in EVALUATED or not evaluation.unconfirmed_successes:
        return
    if evaluation.canary == "off":
        findings.add("unconfirmed", pair, "successes are not confirmed (--no-canary)")
    else:
        findings.add("unchecked", pair, "successes without a confirmation run")


def _check_verdicts(pair: PairData, findings: Findings) -> None:
    """Find verdicts that are better than the test runs in the same file."""
    evaluation = pair.evaluation
    if evaluation is None or pair.state not in EVALUATED:
        return
    for name, parts in _required_successes(evaluation):
        if False in parts:
            text = f"eval.json contradicts itself: {name} is true, a part of it is not"
            findings.add("contradiction", pair, text, EVALUATION)


def _required_successes(evaluation: Evaluation) -> Iterator[tuple[str, list[bool | None]]]:
    """Yield each verdict that is true, with the outcomes that it takes."""
    merged = evaluation.merged
    if evaluation.overall_success_strict:
        yield "overall_success_strict", [evaluation.overall_success]
    if evaluation.overall_success:
        success = merged.success if merged else None
        yield "overall_success", [evaluation.individual_success, success]
    if evaluation.individual_success:
        yield "individual_success", [agent.success for agent in evaluation.agents.values()]
    for subject in (*evaluation.agents, "merged"):
        totals = evaluation.totals_of(subject)
        if totals is not None and totals.success:
            yield f"{subject}.success", [run.success for run in totals.features.values()]


def _check_against_config(run: Run, config: RunRecord, pair: PairData, findings: Findings) -> None:
    result = pair.result
    if result is None or not result.is_completed:
        return
    folder = pair.paths.folder.relative_to(run.root).as_posix()
    if config.requested is not None:
        _check_request(config.requested, folder, pair, findings)
    _check_agents(config, pair, findings)
    _check_assignment(config, pair, findings)
    _check_conditions(config, result, pair, findings)
    names = {config.run_name, *(call.run_name for call in config.invocations)}
    is_of_run = not result.run_name or result.run_name in names
    if not is_of_run and not findings.is_explained(pair, RESULT):
        text = f"result.json is of the run {result.run_name}"
        findings.add("other_run", pair, text, RESULT, EVALUATION)


def _check_request(
    requested: Mapping[str, str], folder: str, pair: PairData, findings: Findings
) -> None:
    """Find pairs that no call asked for, and changes of the dataset since one did."""
    if folder not in requested:
        text = "no call in config.json asked for this"
        findings.add("not_requested", pair, text, RESULT, EVALUATION)
        return
    checksums = {requested[folder], pair.result.dataset_sha256 if pair.result else None}
    if len(checksums - {None, ""}) > 1:
        text = "the dataset's files changed after the pair was first asked for"
        findings.add("dataset", pair, text)


def _check_agents(config: RunRecord, pair: PairData, findings: Findings) -> None:
    """Find agents and models that the configuration does not have in their slots."""
    agents = _split_slots(config.agent or "", len(pair.agent_ids))
    differences = []
    for agent, expected in zip(pair.agents, agents, strict=False):
        if expected and agent.agent and agent.agent != expected:
            differences.append(f"{agent.agent_id} is {agent.agent}, in config.json {expected}")
    models = _configured_models(config.model_name or "none", pair)
    if config.imported is not None and config.model_name is None:
        models = []  # its pairs are of different models
    for agent, model in models:
        if with_vendor(agent.model or "") != with_vendor(model):
            differences.append(f"{agent.agent_id} uses {agent.model}, in config.json {model}")
    if differences:
        findings.add("other_agent", pair, "; ".join(differences), RESULT, EVALUATION)


def _check_assignment(config: RunRecord, pair: PairData, findings: Findings) -> None:
    """Find features that no agent or several agents had, and another number of agents."""
    features: list[int] = []
    for agent in pair.agents:
        features += agent.feature_ids
    if not features:
        return
    if sorted(features) != sorted(pair.key.features):
        text = "result.json does not give each feature of the pair to one agent"
        findings.add("conditions", pair, text, RESULT, EVALUATION)
        return
    count = config.agent_count if isinstance(config.agent_count, int) else len(pair.key.features)
    if pair.setting != "solo" and len(pair.agents) != count:
        text = f"{len(pair.agents)} agents worked on it, in config.json {count}"
        findings.add("conditions", pair, text, RESULT, EVALUATION)


def _configured_models(text: str, pair: PairData) -> list[tuple[AgentData, str]]:
    """Return the agents that use a model, with their model in config.json.

    It has one for all of them, or one for each of them, or one for each slot.
    """
    agents = [agent for agent in pair.agents if agent.model]
    models = _split_slots(text, len(agents))
    if len(models) == len(agents):
        return list(zip(agents, models, strict=True))
    model_by_agent = dict(zip(pair.agent_ids, models, strict=False))
    return [
        (agent, model_by_agent[agent.agent_id])
        for agent in agents
        if agent.agent_id in model_by_agent
    ]


def _split_slots(text: str, slots: int) -> list[str]:
    """Return one value for each slot; if one is given for all, it is repeated."""
    values = [value.strip() for value in text.split(",")]
    return values * slots if len(values) == 1 else values


def _check_conditions(
    config: RunRecord, result: PairResult, pair: PairData, findings: Findings
) -> None:
    """Find options under which the agents worked that are not those in config.json."""
    conditions = result.conditions
    if conditions is None:
        return
    differing = _differing_options(config, conditions)
    if pair.shares_workspace != (conditions.workspace == SHARED):
        findings.add("conditions", pair, "result.json contradicts itself about --workspace", RESULT)
    if result.backend != config.backend:
        differing.append("--backend")
    for part in _TEAM_PARTS:
        has_part = (result.team_features or {}).get(part)
        if has_part is not None and has_part != getattr(config, f"team_{part}"):
            differing.append(f"the team's {part}")
    if differing:
        text = f"the agents worked with other options than in config.json: {', '.join(differing)}"
        findings.add("conditions", pair, text, RESULT, EVALUATION)


def _differing_options(config: RunRecord, conditions: RunConditions) -> list[str]:
    return [
        option
        for name, option in _CONDITION_OPTIONS.items()
        if getattr(conditions, name) != getattr(config, name)
    ]


def _check_keys(run: Run, findings: Findings) -> None:
    """Find verdicts that were copied from another pair and edited: the key names the pair."""
    first_pair_by_key: dict[str, PairKey] = {}
    for pair in run.pairs:
        key = pair.evaluation.key if pair.evaluation else ""
        if key and not findings.is_explained(pair, EVALUATION):
            first = first_pair_by_key.setdefault(key, pair.key)
            if first != pair.key:
                text = f"eval.json has the key of {first.label}"
                findings.add("other_pair", pair, text, EVALUATION)


def _check_same_conditions(run: Run, findings: Findings) -> None:
    """Find results and verdicts of one run that were made in different ways."""
    result_versions: list[_PairValue] = []
    verdict_versions: list[_PairValue] = []
    networks: list[_PairValue] = []
    timeouts: list[_PairValue] = []
    for pair in run.pairs:
        if pair.result is not None and pair.state in ENDED:
            result_versions.append(_PairValue(pair, pair.result.version))
        if pair.evaluation is not None and pair.state in EVALUATED:
            verdict_versions.append(_PairValue(pair, pair.evaluation.version))
            networks.append(_PairValue(pair, pair.evaluation.eval_network))
            timeouts.append(_PairValue(pair, pair.evaluation.test_timeout_seconds))
    _check_same(result_versions, "run by version", findings)
    _check_same(verdict_versions, "evaluated by version", findings)
    _check_same(networks, "evaluated with --eval-network", findings)
    _check_same(timeouts, "evaluated with --test-timeout", findings)


class _PairValue(NamedTuple):
    """A value that should be the same for all pairs."""

    pair: PairData
    value: str | int
    """Empty or 0 if an older file does not have it."""


def _check_same(values: Sequence[_PairValue], text: str, findings: Findings) -> None:
    """Find the pairs whose value is not the most common one."""
    with_value = [entry for entry in values if entry.value]
    counts = Counter(entry.value for entry in with_value)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for pair, value in with_value:
        if value != usual:
            findings.add("mixed", pair, f"{text} {value}, most of the run with {usual}")


def _check_records(run: Run, findings: Findings) -> None:
    """Find records that older versions did not write."""
    config = run.config
    if config is not None and config.requested is None:
        if any(call.pairs is not None for call in config.invocations):
            findings.add_run("config", "config.json was changed: it lacks the requested pairs")
        else:
            findings.add_run("unchecked", "cannot be checked: which pairs were asked for")
    for pair in run.pairs:
        for text in _missing_records(pair):
            findings.add("unchecked", pair, text)


def _missing_records(pair: PairData) -> Iterator[str]:
    """Yield what an older version did not record about a pair."""
    result, evaluation = pair.result, pair.evaluation
    if result is not None and result.is_completed:
        if result.dataset_sha256 is None:
            yield "changes of the dataset's files"
        if result.conditions is None:
            yield "options that the agents worked under"
        if result.attempt > 1 and result.earlier_attempts is None:
            yield "how earlier attempts ended"
    if evaluation is not None and pair.state in EVALUATED and evaluation.patches is None:
        yield "which patches were tested"
