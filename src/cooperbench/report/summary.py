"""summary.json: rates over the evaluated pairs, and counts of all others by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.models import SETTINGS, Pair, Setting
from cooperbench.records.config import imported_from
from cooperbench.records.result import PairResult
from cooperbench.records.summary import (
    BudgetSummary,
    PairSummary,
    Rate,
    Rates,
    SandboxUse,
    SettingSummary,
    Summary,
    UnsoundPairs,
)
from cooperbench.records.trajectory import read_trajectory
from cooperbench.records.usage import total_usage
from cooperbench.report.loading import read_pairs
from cooperbench.report.pairs import EVALUATED, PairData, PairKey
from cooperbench.sandbox.contract import ResourceUse
from cooperbench.storage import AgentPaths, ExperimentPaths, utc_now


def save_summary(
    paths: ExperimentPaths,
    expected: Mapping[Setting, Iterable[Pair]],
    budget: BudgetSummary | None = None,
    used: ResourceUse | None = None,
) -> Summary:
    """Write summary.json and return it.

    Args:
        paths: The folder of the run.
        expected: The requested pairs by setting; pairs on disk are added.
        budget: The state of `--max-cost`; None without it.
        used: What the sandboxes of this call have used.
    """
    settings: dict[str, SettingSummary] = {}
    for setting in SETTINGS:
        if setting in expected or setting in paths.settings_on_disk():
            keys = [_pair_key(pair) for pair in expected.get(setting, ())]
            settings[setting] = _summarize_setting(read_pairs(paths, setting, keys))
    summary = Summary(
        run_name=paths.run_name,
        time=utc_now(),
        version=__version__,
        imported=imported_from(paths.config),
        settings=settings,
        errors=sum(part.errors for part in settings.values()),
        **msgspec.structs.asdict(total_usage(settings.values())),
        spent=spent_on_disk(paths),
        budget=budget,
        sandboxes=_add_sandbox_use(paths, used),
    )
    records.write(paths.summary, summary)
    return summary


def _pair_key(pair: Pair) -> PairKey:
    return PairKey(pair.task.repo, pair.task.task_id, pair.feature_ids)


def _add_sandbox_use(paths: ExperimentPaths, used: ResourceUse | None) -> SandboxUse | None:
    """Return what sandboxes of all calls have used.

    Only summary.json records that, so each call adds to what the last summary has.
    """
    last_summary = records.read(paths.summary, Summary)
    before = last_summary.sandboxes if last_summary else None
    if used is None or not used.count:
        return before
    return SandboxUse(
        count=used.count + (before.count if before else 0),
        what=used.what,
        seconds=round(used.seconds + (before.seconds if before else 0), 3),
        vcpu_seconds=round(used.vcpu_seconds + (before.vcpu_seconds if before else 0), 3),
        gib_seconds=round(used.gib_seconds + (before.gib_seconds if before else 0), 3),
    )


def spent_on_disk(paths: ExperimentPaths) -> float:
    """Return what the run has cost so far, with interrupted and replaced attempts."""
    spent = 0.0
    for setting in SETTINGS:
        for pattern in (f"{setting}/*/*/f*", f"attempts/{setting}/*/*/f*/*"):
            spent += sum(_attempt_cost(folder) for folder in paths.root.glob(pattern))
    return spent


def _attempt_cost(folder: Path) -> float:
    """Return what an attempt has cost. An interrupted one has only trajectories or journals."""
    result = records.read(folder / "result.json", PairResult)
    if result is not None and result.is_completed:
        return result.cost or 0.0
    trajectories = [read_trajectory(AgentPaths(folder, log.stem)) for log in folder.glob("*.log")]
    return sum(trajectory.cost or 0.0 for trajectory in trajectories if trajectory)


def _summarize_setting(pairs: Sequence[PairData]) -> SettingSummary:
    states = Counter(pair.state for pair in pairs)
    evaluated = [pair for pair in pairs if pair.state in EVALUATED]
    finished = [pair for pair in pairs if pair.result and pair.result.is_completed]
    agents = [agent for pair in finished for agent in pair.agents]
    lines = [_summarize_pair(pair) for pair in pairs]
    verdicts = [line for line in lines if line.state in EVALUATED]
    return SettingSummary(
        pairs=len(pairs),
        evaluated=len(evaluated),
        errors=states["error"],
        no_reference=states["no_reference"],
        unevaluated=states["unevaluated"],
        missing=states["missing"],
        broken=states["broken"],
        rates=_rates(verdicts),
        unsound=_unsound_pairs(verdicts),
        suspicious=sum(line.suspicious for line in verdicts),
        successes=sum(pair.successes for pair in evaluated),
        unconfirmed=sum(pair.unconfirmed for pair in evaluated),
        agent_success=_rate(agent.success for pair in evaluated for agent in pair.agents),
        agent_outcomes=_count(agent.status for agent in agents),
        merge_outcomes=_count(pair.merge_status for pair in evaluated),
        messages=sum(pair.messages or 0 for pair in finished),
        **msgspec.structs.asdict(total_usage(agent.record for agent in agents)),
        steps=sum(agent.steps or 0 for agent in agents),
        agent_seconds=round(sum(pair.duration_seconds or 0.0 for pair in finished), 3),
        test_seconds=round(sum(pair.test_seconds for pair in evaluated), 3),
        results=lines,
    )


def _unsound_pairs(verdicts: Sequence[PairSummary]) -> UnsoundPairs | None:
    sound = [line for line in verdicts if not line.unsound]
    if len(sound) == len(verdicts):
        return None
    return UnsoundPairs(pairs=len(verdicts) - len(sound), rates=_rates(sound))


def _rates(lines: Sequence[PairSummary]) -> Rates:
    return Rates(
        individual_success=_rate(line.individual_success for line in lines),
        merge_success=_rate(line.merge_success for line in lines),
        merged_success=_rate(line.merged_success for line in lines),
        overall_success=_rate(line.overall_success for line in lines),
        overall_success_strict=_rate(line.overall_success_strict for line in lines),
    )


def _rate(outcomes: Iterable[bool | None]) -> Rate:
    decided = [outcome for outcome in outcomes if outcome is not None]
    passed = decided.count(True)
    return Rate(passed=passed, of=len(decided), rate=passed / len(decided) if decided else None)


def _count(values: Iterable[str | None]) -> dict[str, int]:
    counts = Counter(value for value in values if value)
    return dict(sorted(counts.items()))


def _summarize_pair(pair: PairData) -> PairSummary:
    evaluation = pair.evaluation
    merged = evaluation.merged if evaluation else None
    result = pair.result if pair.result and pair.result.is_completed else None
    return PairSummary(
        repo=pair.key.repo,
        task_id=pair.key.task_id,
        features=list(pair.key.features),
        state=pair.state,
        individual_success=evaluation.individual_success if evaluation else None,
        merge_success=evaluation.merge_success if evaluation else None,
        merged_success=merged.success if merged else None,
        overall_success=evaluation.overall_success if evaluation else None,
        overall_success_strict=evaluation.overall_success_strict if evaluation else None,
        merge_status=merged.merge_status if merged else None,
        strategy=merged.strategy if merged else None,
        unsound=list(pair.unsound),
        suspicious=bool(pair.suspicious),
        network=pair.network,
        agent_statuses={agent.agent_id: agent.status for agent in pair.agents if agent.status},
        attempts=pair.attempts,
        messages=result.messages if result else None,
        cost=result.cost if result else None,
        unpriced_calls=result.unpriced_calls if result else None,
        error=pair.error or (merged.error if merged else None),
    )
