"""Every formula of our own, held against scipy and statsmodels."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import pytest

from cooperbench.report.pairs import PairKey
from cooperbench.report.statistics import (
    Observation,
    Sample,
    cluster_of,
    holm,
    mcnemar_exact,
    mean,
    p_value,
    power,
    rate,
    t_cdf,
    t_quantile,
)

# Both libraries take seconds to import: one process of the tests does it.
pytestmark = pytest.mark.xdist_group("scipy")


def library(name: str) -> Any:
    """Neither is typed, and nothing outside of these tests needs them."""
    return import_module(name)


def clustered(tasks: int, seed: int, *, alike: float = 0.5) -> list[Observation]:
    """Zeros and ones; in each task a share of pairs follows the task's own coin."""
    source = random.Random(seed)
    found = []
    for task in range(tasks):
        own = source.random() < 0.5
        for feature in range(2, 3 + source.randrange(1, 12)):
            value = own if source.random() < alike else source.random() < 0.5
            found.append(Observation(PairKey("r", task, (1, feature)), float(value)))
    return found


def test_student() -> None:
    stats = library("scipy.stats")
    for degrees in (1, 2, 3, 4, 5, 10, 29, 100, 5000):
        for probability in (0.6, 0.9, 0.95, 0.975, 0.995, 0.9999):
            ours, theirs = t_quantile(probability, degrees), stats.t.ppf(probability, degrees)
            assert ours == pytest.approx(theirs, rel=1e-9)
        for value in (-40.0, -2.5, -0.1, 0.0, 0.3, 4.0, 1e4):
            assert t_cdf(value, degrees) == pytest.approx(
                stats.t.cdf(value, degrees), rel=1e-9, abs=1e-14
            )


def test_wilson() -> None:
    confint = library("statsmodels.stats.proportion").proportion_confint
    for passed, n in ((0, 1), (1, 1), (0, 7), (3, 7), (7, 7), (50, 100), (499, 652)):
        trials = [Observation(PairKey("r", 1, (1, one)), float(one < passed)) for one in range(n)]
        ours = rate(trials, "wilson")
        assert (ours.low, ours.high) == pytest.approx(confint(passed, n, 0.05, "wilson"), abs=1e-12)


def test_mcnemar() -> None:
    mcnemar = library("statsmodels.stats.contingency_tables").mcnemar
    for gained, lost in ((0, 0), (0, 1), (3, 3), (1, 8), (30, 12), (200, 260)):
        theirs = mcnemar([[5, gained], [lost, 9]], exact=True).pvalue if gained + lost else 1.0
        assert mcnemar_exact(gained, lost) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("tasks", "seed"), [(2, 1), (3, 2), (8, 3), (30, 4)])
def test_the_clustered_interval_is_the_regressions(tasks: int, seed: int) -> None:
    observations = clustered(tasks, seed, alike=0.9)
    values = [one.value for one in observations]
    groups = [cluster_of(one.key)[1] for one in observations]
    model = library("statsmodels.regression.linear_model").OLS(values, [1.0] * len(values))
    theirs = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    independent = model.fit()
    effect = Sample(observations).design_effect
    assert effect is not None
    assert effect == pytest.approx((theirs.bse[0] / independent.bse[0]) ** 2, rel=1e-9)
    assert effect > 1
    ours = mean(observations)
    assert ours.value == pytest.approx(theirs.params[0])
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.conf_int(0.05)[0]), rel=1e-9)
    assert (ours.n, ours.clusters) == (len(values), tasks)


def test_the_bootstrap_is_that_of_scipy_over_tasks() -> None:
    numpy, stats = library("numpy"), library("scipy.stats")
    observations = clustered(25, 5, alike=0.8)
    tasks = sorted({cluster_of(one.key) for one in observations})
    sums = [sum(one.value for one in observations if cluster_of(one.key) == task) for task in tasks]
    sizes = [sum(cluster_of(one.key) == task for one in observations) for task in tasks]

    def share(chosen: Any, of: Any, axis: int = -1) -> Any:
        return numpy.sum(chosen, axis=axis) / numpy.sum(of, axis=axis)

    theirs = stats.bootstrap(
        (sums, sizes), share, paired=True, method="percentile", n_resamples=20_000, rng=numpy.random.default_rng(1)
    ).confidence_interval  # fmt: skip
    ours = rate(observations, "bootstrap")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def differences(tasks: int, seed: int, pairs: int = 3) -> list[Observation]:
    source = random.Random(seed)
    return [
        Observation(PairKey("r", task, (1, feature)), own + source.gauss(0.1, 0.5))
        for task in range(tasks)
        for own in [source.gauss(0, 0.5)]
        for feature in range(2, 2 + pairs)
    ]


def test_p_values_of_clustered_means_are_those_of_a_regression() -> None:
    numpy, api = library("numpy"), library("statsmodels.api")
    for seed in range(8):
        found = differences(12, seed)
        values = numpy.array([one.value for one in found])
        groups = numpy.array([cluster_of(one.key)[1] for one in found])
        options = {"groups": groups, "use_correction": True, "df_correction": True}
        fitted = api.OLS(values, numpy.ones(len(values))).fit(
            cov_type="cluster", cov_kwds=options, use_t=True
        )
        assert Sample(found).standard_error == pytest.approx(float(fitted.bse[0]), rel=1e-9)
        assert p_value(found) == pytest.approx(float(fitted.pvalues[0]), rel=1e-9)
    single = differences(20, 1, pairs=1)
    theirs = library("scipy.stats").ttest_1samp([one.value for one in single], 0.0)
    assert p_value(single) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_holm() -> None:
    correct = library("statsmodels.stats.multitest").multipletests
    for values in (
        [0.01, 0.04, 0.03, 0.005],
        [0.5],
        [0.9, 0.8, 0.7],
        [0.02, 0.02, 0.02],
        [1.0, 0.0, 0.04, 0.2, 0.01],
    ):
        assert holm(values) == pytest.approx(list(correct(values, method="holm")[1]), abs=1e-12)
    assert holm([]) == []


def test_power() -> None:
    """One pair a task, so that theirs, which know no clusters, mean the same."""
    theirs = library("statsmodels.stats.power")
    found = differences(60, 5, pairs=1)
    values = [one.value for one in found]
    deviation, centre = Sample(found).standard_error * len(values) ** 0.5, sum(values) / len(values)
    for tests in (1, 5):
        alpha = 0.05 / tests
        needed = theirs.normal_sample_size_one_tail(centre, 0.8, alpha / 2, std_null=deviation)
        assert power(found, tests)[1] == pytest.approx(needed, abs=1.0)
        exact = theirs.TTestPower().solve_power(nobs=len(values), alpha=alpha, power=0.8)
        assert power(found, tests)[0] == pytest.approx(exact * deviation, rel=0.02)
