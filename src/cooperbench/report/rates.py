"""Rates of runs, settings, repositories and tasks: verdicts with intervals, and everything else counted apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.records import VERDICTS, number
from cooperbench.report.states import ENDED, JUDGED, STATES
from cooperbench.report.statistics.clusters import Observation
from cooperbench.report.statistics.intervals import Estimate, rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report.choices import Level, Method
    from cooperbench.report.loading import PairData, Run
    from cooperbench.report.states import State

MEANINGS = {
    "individual": "every patch passes its own tests alone",
    "merge": "the patches merge in plain git",
    "merged": "the merge passes all tests",
    "overall": "both: alone and merged",
    "strict": "overall, and without a textual conflict",
}


@dataclass(frozen=True)
class RateRow:
    """The pairs of one setting of one run, or those of one repository or task among them."""

    run: str
    setting: Setting
    repo: str | None
    task_id: int | None
    states: Mapping[State, int]
    """How many pairs are in which state; rates are over the judged ones."""
    rates: Mapping[str, Estimate]
    """By verdict; those that do not apply (one agent's patch merges with nothing) are not in it."""
    unsound: int
    """Judged pairs with tests that pass without the feature."""
    sound_rates: Mapping[str, Estimate]
    """The rates without those."""
    cost: float
    unpriced_calls: int
    """Of models whose price nobody knows: the cost is without them."""
    steps: int
    tokens: int
    messages: int
    agent_seconds: float

    @property
    def pairs(self) -> int:
        return sum(self.states.values())

    @property
    def judged(self) -> int:
        return sum(self.states[state] for state in JUDGED)

    @property
    def finished(self) -> int:
        """Pairs whose agents came to an end, judged or not: those that the cost is of."""
        return sum(self.states[state] for state in ENDED)

    @property
    def left_out(self) -> dict[State, int]:
        """What has no verdict, by why."""
        return {state: self.states[state] for state in STATES if state not in JUDGED and self.states[state]}

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "setting": self.setting,
            "repo": self.repo,
            "task_id": self.task_id,
            "pairs": self.pairs,
            "judged": self.judged,
            "states": dict(self.states),
            "rates": _rates_json(self.rates),
            "unsound": {"pairs": self.unsound, "rates": _rates_json(self.sound_rates)}
            if self.unsound
            else None,
            "cost": self.cost,
            "unpriced_calls": self.unpriced_calls,
            "steps": self.steps,
            "tokens": self.tokens,
            "messages": self.messages,
            "agent_seconds": self.agent_seconds,
        }


def _rates_json(rates: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in rates.items()}


def observations(pairs: Iterable[PairData], verdict: str) -> list[Observation]:
    """One verdict of all pairs that have it, as zeros and ones."""
    found = []
    for pair in pairs:
        verdicts = pair.verdicts
        value = getattr(verdicts, verdict) if verdicts is not None else None
        if value is not None:
            found.append(Observation(pair.key, float(value)))
    return found


def applicable(setting: Setting) -> tuple[str, ...]:
    """The verdicts of a setting: one agent's patch merges with nothing."""
    return VERDICTS if setting != "solo" else ("individual", "overall")


def _rates(pairs: Sequence[PairData], setting: Setting, method: Method) -> dict[str, Estimate]:
    return {verdict: rate(observations(pairs, verdict), method) for verdict in applicable(setting)}


def rate_rows(runs: Sequence[Run], level: Level = "setting", method: Method = "clustered") -> list[RateRow]:
    """A row for each setting of each run, followed by those of its repositories, or tasks, if asked for."""
    rows = []
    for run in runs:
        for setting in run.settings:
            pairs = run.of(setting)
            rows.append(_row(run, setting, pairs, method))
            rows += [
                _row(run, setting, group, method, repo, task_id)
                for (repo, task_id), group in _groups(pairs, level).items()
            ]
    return rows


def _groups(pairs: Sequence[PairData], level: Level) -> dict[tuple[str, int | None], list[PairData]]:
    groups: dict[tuple[str, int | None], list[PairData]] = {}
    if level != "setting":
        for pair in pairs:
            place = (pair.key.repo, pair.key.task_id if level == "task" else None)
            groups.setdefault(place, []).append(pair)
    return groups


def _row(
    run: Run,
    setting: Setting,
    pairs: Sequence[PairData],
    method: Method,
    repo: str | None = None,
    task_id: int | None = None,
) -> RateRow:
    states = [pair.state for pair in pairs]
    sound = [pair for pair in pairs if not pair.unsound]
    return RateRow(
        run=run.name,
        setting=setting,
        repo=repo,
        task_id=task_id,
        states={state: states.count(state) for state in STATES},
        rates=_rates(pairs, setting, method),
        unsound=len(pairs) - len(sound),
        sound_rates=_rates(sound, setting, method),
        cost=sum(pair.cost for pair in pairs),
        unpriced_calls=sum(
            int(number(agent.record, "unpriced_calls")) for pair in pairs for agent in pair.agents
        ),
        steps=sum(pair.steps for pair in pairs),
        tokens=sum(pair.tokens for pair in pairs),
        messages=sum(pair.messages for pair in pairs),
        agent_seconds=sum(pair.duration_seconds for pair in pairs),
    )
