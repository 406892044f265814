"""`cooperbench.sweep` and `cooperbench.ablate`: the documented functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from cooperbench.lab.factors import make_factors
from cooperbench.lab.registration import Hypothesis
from cooperbench.lab.study import StudyOptions, make_study
from cooperbench.runner.api import config_from_call, run
from cooperbench.runner.display import make_display


def sweep(  # noqa: PLR0913  # the documented signature
    run_name: str,
    factors: Mapping[str, Sequence[Any]] | None = None,
    off: Sequence[str] = (),
    *,
    one_at_a_time: bool = False,
    repeat: int = 1,
    primary: str | None = None,
    effect: float | None = None,
    discordant: float | None = None,
    design_effect: float | None = None,
    **options: Any,
) -> None:
    """Run the same pairs at several levels of one or more factors.

    Args:
        run_name: Name of the study. Its arms are runs under `logs_dir/run_name`.
        factors: The levels of each factor, for example `{"messages": [0, 3, "unlimited"]}`. The
            names are those of the flags of `cooperbench sweep`.
        off: Parts of cooperation that are on in some arms and off in others.
        one_at_a_time: Vary one factor at a time, with the first levels of all others, instead of
            all combinations.
        repeat: Number of runs of each arm.
        primary: The verdict that decides.
        effect: Difference between two rates that the study should be able to show.
        discordant: Assumed share of pairs that succeed at only one of two levels.
        design_effect: Assumed variance, divided by that of independent pairs.
        options: Keywords of `run`, for all arms.
    """
    hypothesis = Hypothesis(primary, effect, discordant, design_effect)
    study_options = StudyOptions(hypothesis, not one_at_a_time, repeat)
    call = signature(run).bind(run_name, **options)
    call.apply_defaults()
    config = config_from_call(call.arguments)
    study = make_study(config, make_factors(config, factors or {}, off), study_options)
    study.print_summaries(study.run(make_display()))


def ablate(
    run_name: str,
    off: Sequence[str],
    *,
    full_factorial: bool = False,
    repeat: int = 1,
    **options: Any,
) -> None:
    """Run the same pairs with all parts of cooperation on, and with each part in `off` off.

    This is a sweep over parts, one at a time, or with `full_factorial` over all combinations.
    `options` are the keywords of `run` and the other ones of `sweep`. Arms are runs under
    `logs_dir/run_name`; a table of them is printed.
    """
    sweep(run_name, off=off, one_at_a_time=not full_factorial, repeat=repeat, **options)
