"""What is a part of cooperation worth? The same pairs with all parts on and with some off, as one experiment.

An arm is a run of its own in the folder of the study: `logs/study/all`, `logs/study/no-git`. study.json beside them
says which there are. All arms share one budget, one session of sandboxes and one queue, in which they are interleaved.
A killed study continues with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from cooperbench.errors import UserError
from cooperbench.models import Pair
from cooperbench.runner.api import check, price_notes, select
from cooperbench.runner.config import RunConfig
from cooperbench.runner.display import Display
from cooperbench.runner.experiment import Arm, carry_out
from cooperbench.runner.options import TEAM_PARTS
from cooperbench.storage import ExperimentPaths, read_json, write_json
from cooperbench.text import names_for_error

SCHEMA = "cooperbench.study/1"


@dataclass(frozen=True)
class ArmPair(Pair):
    """A pair in one arm: it may be at work in several at once."""

    arm: str = ""

    @property
    def label(self) -> str:
        return f"{super().label} ({self.arm})"


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


def make_study(config: RunConfig, off: Sequence[str], *, full_factorial: bool, repeat: int) -> Study:
    """All on, each part off, or every combination; `config` is what all arms have in common, named like the study."""
    if config.setting == "solo":
        raise UserError("in setting solo nobody cooperates: ablate takes coop or team")
    if config.executor != "local":
        raise UserError(f"ablate works on this machine only, not by --executor {config.executor}")
    known = {
        part: field
        for part, field in TEAM_PARTS.items()
        if config.setting == "team" or not field.startswith("team_")
    }
    for part in off:
        if part not in known:
            there = names_for_error(known, part)
            raise UserError(f"no part {part!r} to switch off in setting {config.setting}; there are: {there}")
        # Git is on in coop only where it is asked for: the study does that.
        if not getattr(config, known[part]) and (config.setting, part) != ("coop", "git"):
            raise UserError(f"{part} is off in all arms already; leave it out of --off, or on")
    parts = tuple(part for part in known if part in off)
    paths = config.paths
    if paths.config.exists():
        raise UserError(f"{paths.run_name!r} is the name of a run; take another name (-n) for the study")
    most = len(parts) if full_factorial else 1
    combined = [combination for size in range(most + 1) for combination in combinations(parts, size)]
    common, notes = select(config)
    arms, off_by_name = [], {}
    for number in range(1, repeat + 1):
        for one in combined:
            name = ("no-" + "+".join(one) if one else "all") + (f"@{number}" if number > 1 else "")
            switches: dict[str, Any] = {known[part]: part not in one for part in parts}
            own = replace(config, run_name=f"{paths.run_name}/{name}", **switches)
            arms.append(
                Arm(own, [ArmPair(pair.task, pair.feature_ids, name) for pair in common.pairs], number)
            )
            off_by_name[name] = one
    return Study(paths, parts, off_by_name, tuple(arms), notes)
