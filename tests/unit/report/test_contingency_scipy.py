"""Tests over levels, their power, and trends over tasks, held against scipy, statsmodels and simulation."""

from __future__ import annotations

import random
from importlib import import_module
from math import comb
from typing import Any

import pytest

from cooperbench.errors import UserError
from cooperbench.report.contingency import Stratum, cochran_armitage, mantel_haenszel
from cooperbench.report.pairs import PairKey
from cooperbench.report.power import PairedDesign, RepeatedDesign
from cooperbench.report.statistics import Observation, p_value

# Both libraries take seconds to import: one process of the tests does it.
pytestmark = pytest.mark.xdist_group("scipy")


def library(name: str) -> Any:
    return import_module(name)


TABLES = (
    ((1, 4, 9), (20, 20, 20)),
    ((10, 4), (25, 30)),
    ((0, 0, 3, 3), (3, 3, 3, 3)),
    ((5, 9, 2, 14, 8), (40, 12, 31, 22, 9)),
)


@pytest.mark.parametrize(("successes", "totals"), TABLES)
def test_cochran_armitage(successes: tuple[int, ...], totals: tuple[int, ...]) -> None:
    numpy = library("numpy")
    table = library("statsmodels.stats.contingency_tables").Table
    failures = [total - passed for passed, total in zip(successes, totals, strict=True)]
    theirs = table(numpy.array([failures, successes]), shift_zeros=False)
    trend = theirs.test_ordinal_association(
        row_scores=numpy.array([0, 1]), col_scores=numpy.arange(len(totals))
    )
    ours = cochran_armitage(successes, totals)
    assert ours is not None
    # Theirs is conditional on both margins: its variance has N - 1 where ours has N.
    count = sum(totals)
    assert ours[0] == pytest.approx(trend.zscore * (count / (count - 1)) ** 0.5, rel=1e-9)
    assert ours[1] == pytest.approx(2 * library("scipy.stats").norm.sf(abs(ours[0])), rel=1e-9)
    # It is the score test of a logistic regression.
    score = _score_test(successes, totals)
    assert ours[0] ** 2 == pytest.approx(score, rel=1e-6)


def _score_test(successes: tuple[int, ...], totals: tuple[int, ...]) -> float:
    numpy, api = library("numpy"), library("statsmodels.api")
    outcomes, levels = [], []
    for level, (passed, total) in enumerate(zip(successes, totals, strict=True)):
        outcomes += [1.0] * passed + [0.0] * (total - passed)
        levels += [float(level)] * total
    fitted = api.GLM(
        numpy.array(outcomes), numpy.ones(len(outcomes)), family=api.families.Binomial()
    )
    result = fitted.fit().score_test(exog_extra=numpy.array(levels)[:, None])
    return float(numpy.squeeze(result[0]))


def test_nothing_to_test() -> None:
    assert cochran_armitage([], []) is None
    assert cochran_armitage([3, 3], [3, 3]) is None
    assert mantel_haenszel([]) is None
    assert mantel_haenszel([Stratum([1, 1], [1, 1]), Stratum([0, 0], [1, 1])]) is None


def random_strata(seed: int, levels: int, count: int) -> list[Stratum]:
    source = random.Random(seed)
    strata = []
    for _ in range(count):
        totals = [float(source.randrange(1, 9)) for _ in range(levels)]
        strata.append(Stratum([float(source.randint(0, int(total))) for total in totals], totals))
    return strata


@pytest.mark.parametrize("seed", range(4))
def test_mantel_haenszel_of_two_levels(seed: int) -> None:
    strata = random_strata(seed, 2, 12)
    tables = [
        [
            [stratum.successes[1], stratum.totals[1] - stratum.successes[1]],
            [stratum.successes[0], stratum.totals[0] - stratum.successes[0]],
        ]
        for stratum in strata
    ]
    numpy = library("numpy")
    theirs = library("statsmodels.stats.contingency_tables").StratifiedTable(
        [numpy.array(table) for table in tables]
    )
    expected = theirs.test_null_odds(correction=False)
    ours = mantel_haenszel(strata)
    assert ours is not None
    assert ours.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert ours.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert ours.odds_ratio == pytest.approx(theirs.oddsratio_pooled, rel=1e-9)


def test_one_result_of_each_pair_is_mcnemars_test() -> None:
    strata = [Stratum([0, 1], [1, 1])] * 9 + [Stratum([1, 0], [1, 1])] * 3
    strata += [Stratum([1, 1], [1, 1])] * 5
    mcnemar = library("statsmodels.stats.contingency_tables").mcnemar
    theirs = mcnemar([[5, 3], [9, 0]], exact=False, correction=False)
    ours = mantel_haenszel(strata)
    assert ours is not None
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.odds_ratio == 3.0


def test_mantel_haenszel_of_a_trend() -> None:
    """One stratum of several levels is the test of ordinal association; strata add up."""
    numpy = library("numpy")
    kind = library("statsmodels.stats.contingency_tables").Table
    deviation = variance = 0.0
    strata = random_strata(7, 4, 6)
    for stratum in strata:
        failures = [
            total - passed for passed, total in zip(stratum.successes, stratum.totals, strict=True)
        ]
        table = kind(numpy.array([failures, stratum.successes]), shift_zeros=False)
        result = table.test_ordinal_association(
            row_scores=numpy.array([0, 1]), col_scores=numpy.arange(4)
        )
        single = mantel_haenszel([stratum])
        assert single is not None
        assert single.statistic == pytest.approx(result.zscore**2, rel=1e-9)
        assert single.odds_ratio is None
        deviation += result.statistic - result.null_mean
        variance += result.null_sd**2
    ours = mantel_haenszel(strata)
    assert ours is not None
    assert ours.statistic == pytest.approx(deviation**2 / variance, rel=1e-9)
    assert ours.p == pytest.approx(library("scipy.stats").chi2.sf(ours.statistic, 1), rel=1e-9)


@pytest.mark.parametrize(
    ("effect", "discordant", "pairs"), [(0.15, 0.5, 170), (0.2, 0.3, 60), (0.1, 0.15, 100)]
)
def test_power_is_that_of_simulated_pairs(effect: float, discordant: float, pairs: int) -> None:
    numpy = library("numpy")
    source = numpy.random.default_rng(3)
    shares = [(discordant + effect) / 2, (discordant - effect) / 2, 1 - discordant]
    counts = source.multinomial(pairs, shares, size=20_000)
    gained, lost = counts[:, 0], counts[:, 1]
    statistic = (gained - lost) / numpy.sqrt(numpy.maximum(gained + lost, 1))
    share = float(numpy.mean(statistic > library("scipy.stats").norm.ppf(0.975)))
    design = PairedDesign(effect, discordant)
    assert design.power(pairs) == pytest.approx(share, abs=0.04)


def test_sample_size_has_the_power() -> None:
    for design in (PairedDesign(), PairedDesign(0.3, 0.3, tests=4), PairedDesign(0.05, 0.2, 2.5)):
        needed = design.pairs_needed()
        assert design.power(needed) >= 0.8 > design.power(needed - 1) or design.effect == 0.3
    # Without a difference of variances it is the usual formula for one mean.
    theirs = library("statsmodels.stats.power").normal_sample_size_one_tail
    design = PairedDesign(0.1, 0.4)
    null, alternative = 0.4**0.5, (0.4 - 0.1**2) ** 0.5
    expected = theirs(0.1, 0.8, 0.025, std_null=null, std_alternative=alternative)
    assert design.pairs_needed() == pytest.approx(expected, abs=1.0)
    assert PairedDesign(0.1, 0.4, design_effect=3.0).pairs_needed() == pytest.approx(
        3 * expected, abs=2.0
    )


def exact_power(repetitions: int, low: float, high: float) -> float:
    """Count all outcomes of two independent rates that Fisher's test takes for an increase."""
    stats = library("scipy.stats")
    outcomes = range(repetitions + 1)
    power = 0.0
    for fewer in outcomes:
        for more in outcomes:
            table = [[fewer, repetitions - fewer], [more, repetitions - more]]
            if more > fewer and stats.fisher_exact(table).pvalue < 0.05:
                probability = stats.binom.pmf(fewer, repetitions, low)
                power += probability * stats.binom.pmf(more, repetitions, high)
    return float(power)


@pytest.mark.parametrize(
    ("effect", "discordant", "low"), [(0.15, 0.5, 0.35), (0.8, 0.8, 0.0), (0.6, 0.68, 0.2)]
)
def test_power_of_repetitions_of_one_pair(effect: float, discordant: float, low: float) -> None:
    design = RepeatedDesign(effect, discordant)
    for repetitions in (1, 3, 5, 12):
        expected = exact_power(repetitions, low, low + effect)
        assert design.power(repetitions) == pytest.approx(expected, abs=1e-9)
    # Above 20 repetitions it is an approximation.
    expected = exact_power(24, low, low + effect)
    assert design.power(24) == pytest.approx(expected, abs=0.02)


def test_number_of_repetitions_has_the_power() -> None:
    assert RepeatedDesign(1.0, 1.0).repetitions_needed() == 4
    assert RepeatedDesign(1.0, 1.0).power(30) == 1.0
    for design in (RepeatedDesign(), RepeatedDesign(0.8, 0.8), RepeatedDesign(0.4, 0.5)):
        needed = design.repetitions_needed()
        assert design.power(needed) >= 0.8 > design.power(needed - 1)


def power_over_pairs(pairs: int, effect: float, discordant: float) -> float:
    """Count all outcomes of pairs that the test of their mean takes for an increase."""
    increase, decrease = (discordant + effect) / 2, (discordant - effect) / 2
    power = 0.0
    for gained in range(pairs + 1):
        for lost in range(min(gained, pairs - gained + 1)):
            same = pairs - gained - lost
            changes = [1.0] * gained + [-1.0] * lost + [0.0] * same
            observations = [
                Observation(PairKey(f"pair {index}", 1, (1, 2)), change)
                for index, change in enumerate(changes)
            ]
            p = p_value(observations)
            if p is not None and p < 0.05:
                ways = comb(pairs, gained) * comb(pairs - gained, lost)
                power += ways * increase**gained * decrease**lost * (1 - discordant) ** same
    return power


@pytest.mark.parametrize(("effect", "discordant"), [(0.15, 0.5), (0.3, 0.3), (0.5, 0.7)])
def test_power_of_few_pairs(effect: float, discordant: float) -> None:
    """Forks of several pairs with one repetition, whose differences are clustered by pair."""
    assert power_over_pairs(4, effect, discordant) == 0.0
    design = PairedDesign(effect, discordant)
    for pairs in (30, 40):
        assert power_over_pairs(pairs, effect, discordant) > design.power(pairs) - 0.02


def test_impossible_designs() -> None:
    for values in ((0.0, 0.5), (0.6, 0.5), (0.2, 1.1)):
        with pytest.raises(UserError, match=r"^--(effect|discordant) is "):
            PairedDesign(*values)
        with pytest.raises(UserError, match=r"^--(effect|discordant) is "):
            RepeatedDesign(*values)
    with pytest.raises(UserError, match=r"forks of one pair are independent, .* at most 0\.545 "):
        RepeatedDesign(0.3, 0.6)
