"""What is a part of cooperation worth? The same pairs with all parts on and with some off, as one experiment.

An arm is a run of its own in the folder of the study (`logs/study/no-git`); study.json says which there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import combinations
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import Pair
from cooperbench.report.formatting import Table, print_tables
from cooperbench.report.summary_text import budget_text, rate_cells
from cooperbench.runner.api import check, config_of_call, price_notes, run, select
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display, make_display
from cooperbench.runner.experiment import Arm, carry_out
from cooperbench.runner.options import TEAM_PARTS
from cooperbench.storage import ExperimentPaths, read_json, write_json
from cooperbench.text import dollars_text, names_for_error

SCHEMA = "cooperbench.study/1"


@dataclass(frozen=True)
class ArmPair(Pair):
    """A pair in one arm: it may be at work in several at once."""

    arm: str = ""

    @property
    def label(self) -> str:
        return f"{super().label} ({self.arm})"


def named_pairs(pairs: Iterable[Pair], arm: str) -> tuple[ArmPair, ...]:
    return tuple(ArmPair(pair.task, pair.feature_ids, arm) for pair in pairs)


@dataclass(frozen=True)
class Study:
    paths: ExperimentPaths
    parts: tuple[str, ...]
    """In the order of `TEAM_PARTS`."""
    off: dict[str, tuple[str, ...]]
    """What is off in each arm, by its name."""
    arms: tuple[Arm, ...]
    """In the same order; of each round, the one with all parts on first."""
    notes: tuple[str, ...]

    def checked(self) -> dict[str, Arm]:
        """With what is left to do; nothing is written."""
        return dict(zip(self.off, map(check, self.arms), strict=True))

    def run(self, display: Display) -> dict[str, dict[str, Any]]:
        """The summary of each arm, by its name."""
        self.checked()
        notes = (*self.notes, *price_notes(self.arms[0].config))
        with self.paths.lock():
            summaries = carry_out(self.arms, display, notes, self._save)
        return dict(zip(self.off, summaries.values(), strict=True))

    def _save(self) -> None:
        """Arms of earlier calls stay."""
        stored = read_json(self.paths.study) or {}
        parts = {*stored.get("parts", {}), *self.parts}
        arms = {arm["name"]: arm for arm in stored.get("arms", [])}
        for (name, off), arm in zip(self.off.items(), self.arms, strict=True):
            arms[name] = {"name": name, "off": list(off), "round": arm.round}
        write_json(
            self.paths.study,
            {
                "schema": SCHEMA,
                "study": self.paths.run_name,
                "parts": {part: field for part, field in TEAM_PARTS.items() if part in parts},
                "arms": list(arms.values()),
            },
        )

    def print_summaries(self, summaries: Mapping[str, dict[str, Any]]) -> None:
        setting = self.arms[0].config.setting
        rows = []
        for name, summary in summaries.items():
            part = summary["settings"][setting]
            overall = "{} ({})".format(*rate_cells(part["rates"]["overall_success"]))
            counts = [str(part[key]) for key in ("pairs", "evaluated")]
            rows.append(
                [name, *counts, overall, str(part["errors"]), dollars_text(summary["cost"])]
            )
        headings = ("arm", "pairs", "evaluated", "overall", "errors", "cost")
        budget = next(iter(summaries.values()))["budget"]
        study = self.paths.run_name
        notes = [
            *([budget_text(budget)] if budget else ()),
            f"What each part is worth: cooperbench report {study}",
        ]
        print_tables([Table(study, headings, rows, notes)])


def ablate(
    run_name: str,
    off: Sequence[str],
    *,
    full_factorial: bool = False,
    repeat: int = 1,
    **options: Any,
) -> None:
    """Run the same pairs with all parts of cooperation on, and with each of `off` off (or every combination of them).

    `options` are the keywords of `run`. Arms are runs under `logs_dir/run_name`; a table of them is printed.
    """
    call = signature(run).bind(run_name, **options)
    call.apply_defaults()
    study = make_study(
        config_of_call(call.arguments), off, full_factorial=full_factorial, repeat=repeat
    )
    study.print_summaries(study.run(make_display()))


def make_study(
    config: RunConfig, off: Sequence[str], *, full_factorial: bool, repeat: int
) -> Study:
    """All on, each part off, or every combination; `config` is what all arms have in common, named like the study."""
    if config.setting == "solo":
        raise UserError("in setting solo nobody cooperates: ablate takes coop or team")
    known = {
        part: field
        for part, field in TEAM_PARTS.items()
        if config.setting == "team" or not field.startswith("team_")
    }
    for part in off:
        if part not in known:
            there = names_for_error(known, part)
            raise UserError(
                f"no part {part!r} to switch off in setting {config.setting}; there are: {there}"
            )
        # Git is on in coop only where it is asked for: the study does that.
        if not getattr(config, known[part]) and (config.setting, part) != ("coop", "git"):
            raise UserError(f"{part} is off in all arms already; leave it out of --off, or on")
    parts = tuple(part for part in known if part in off)
    paths = config.paths
    if paths.config.exists():
        raise UserError(
            f"{paths.run_name!r} is the name of a run; take another name (-n) for the study"
        )
    most = len(parts) if full_factorial else 1
    combined = [
        combination for size in range(most + 1) for combination in combinations(parts, size)
    ]
    common, notes = select(config)
    arms, off_by_name = [], {}
    for number in range(1, repeat + 1):
        for one in combined:
            name = ("no-" + "+".join(one) if one else "all") + (f"@{number}" if number > 1 else "")
            switches: dict[str, Any] = {known[part]: part not in one for part in parts}
            own = replace(config, run_name=f"{paths.run_name}/{name}", **switches)
            arms.append(Arm(own, named_pairs(common.pairs, name), number))
            off_by_name[name] = one
    return Study(paths, parts, off_by_name, tuple(arms), notes)
