"""Comparison, difficulty, repetitions and cross-play, on runs whose answers are known."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import UserError
from cooperbench.report.analysis import analyse, cross_play, find_repeats, pass_at_k
from cooperbench.report.compare import compare_sides, sides_to_compare
from cooperbench.report.curves import analyse_difficulty, area
from cooperbench.report.formatting import print_tables
from cooperbench.report.loading import Run, check_same_dataset, load_run
from cooperbench.report.page.overview import make_overview
from cooperbench.report.tables import analysis_tables
from tests.support.report.factory import Kind, Style, keys_of, layout, write_run

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.pairs import PairKey

PAIRS = layout(2, 4, 12)
KEYS = keys_of(PAIRS)


def made(
    logs: Path,
    name: str,
    passed: Collection[int],
    setting: Setting = "coop",
    *,
    without: Collection[int] = (),
    model: str = "gpt-4o",
    dataset: str = "dataset",
) -> Run:
    """A run of twelve pairs in four tasks: those at these places pass, others fail or end in an error."""

    def kind(key: PairKey) -> Kind:
        place = KEYS.index(key)
        return "error" if place in without else "passed" if place in passed else "capability"

    content = ("2" if dataset == "dataset" else "3") * 64
    style = Style(bare=True, models=(model, model), dataset=dataset, content_sha256=content)
    write_run(logs, name, PAIRS, kind, setting=setting, style=style)
    return load_run(logs, name)


def test_comparison_uses_common_pairs(tmp_path: Path) -> None:
    before = made(tmp_path, "before", {0, 1, 2, 3, 4, 9}, without={10})
    after = made(tmp_path, "after", {0, 1, 5, 11}, without={9, 10})
    ((first, second),) = sides_to_compare([(before, None), (after, None)])
    found = compare_sides(first, second)
    assert found.n == 10
    assert (found.first_rate.value, found.second_rate.value) == (0.5, 0.4)
    assert found.difference.value == pytest.approx(-0.1)
    assert found.drop == pytest.approx(0.1)
    assert found.lost == (KEYS[2], KEYS[3], KEYS[4])
    assert found.gained == (KEYS[5], KEYS[11])
    assert found.mcnemar_p == 1.0
    assert [(one.label, one.first_state, one.second_state) for one in found.unpaired] == [
        (KEYS[9].label, "passed", "error"),
        (KEYS[10].label, "error", "error"),
    ]
    assert found.difference.clusters == 4
    assert found.difference.low is not None
    assert found.difference.high is not None
    assert found.difference.low < -0.1 < found.difference.high
    assert (found.coordination_deficit, found.retention) == (None, None)
    back = compare_sides(second, first)
    assert back.difference.low == pytest.approx(-found.difference.high)


def test_solo_against_coop_is_the_deficit_whatever_the_order(tmp_path: Path) -> None:
    made(tmp_path, "r", set(range(9)), "solo")
    run = made(tmp_path, "r", {0, 1, 2})
    ((first, second),) = sides_to_compare([(run, None)])
    assert (first.label, second.label) == ("r:solo", "r:coop")
    for found in (compare_sides(first, second), compare_sides(second, first)):
        assert found.coordination_deficit is not None
        assert found.retention is not None
        assert found.coordination_deficit.value == pytest.approx(0.5)
        assert found.retention.value == pytest.approx(1 / 3)
    (paired,) = analyse([run]).coordination_deficits
    assert paired.coordination_deficit == compare_sides(first, second).coordination_deficit


def test_solo_run_is_matched_by_agent_and_model(tmp_path: Path) -> None:
    runs = [
        made(tmp_path, "coop-a", {0}, model="a"),
        made(tmp_path, "solo-b", {0, 1}, "solo", model="b"),
        made(tmp_path, "solo-a", {0, 1, 2}, "solo", model="a"),
    ]
    (found,) = analyse(runs).coordination_deficits
    assert (found.first, found.second) == ("solo-a:solo", "coop-a:coop")
    (shown,) = make_overview(runs).deficits
    assert (shown.first, shown.second, shown.n) == (found.first, found.second, found.n)


def test_solo_of_another_model_is_not_matched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        made(tmp_path, "coop-a", {0}, model="a"),
        made(tmp_path, "solo-b", {0, 1}, "solo", model="b"),
    ]
    found = analyse(runs)
    assert (found.coordination_deficits, found.coop_without_solo) == ((), ("coop-a:coop",))
    page = make_overview(runs)
    assert (page.deficits, page.without_solo) == ((), ("coop-a:coop",))
    print_tables(analysis_tables(found))
    assert (
        "coop-a:coop: there is no solo run of the same agent and model" in capsys.readouterr().out
    )


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    coop, solo = made(tmp_path, "c", {0}), made(tmp_path, "s", {0}, "solo")
    other = made(tmp_path, "o", {0}, dataset="another")
    wrong: dict[str, list[tuple[Run, Setting | None]]] = {
        "has only coop results to compare; name a second run": [(coop, None)],
        "not 3": [(coop, None), (solo, None), (other, None)],
        r"no setting in common \('c' has coop; 's' has solo\)": [(coop, "solo"), (solo, None)],
    }
    for words, chosen in wrong.items():
        with pytest.raises(UserError, match=words):
            sides_to_compare(chosen)
    with pytest.raises(UserError, match=r"c has dataset at revision \w+; o has another at"):
        check_same_dataset([coop, solo, other])
    check_same_dataset([coop, other], anyway=True)


def test_difficulty_is_one_minus_mean_solo_success_rescaled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        made(tmp_path, "a1", {0, 1, 2, 3, 4, 5}, "solo", model="a"),
        made(tmp_path, "a2", {0, 1, 2, 3}, "solo", model="a"),
        made(tmp_path, "b", {0, 1, 6}, "solo", model="b", without={7}),
        made(tmp_path, "c", {0, 6}, "coop", model="a"),
    ]
    found = analyse_difficulty(runs)
    scores = [one.difficulty for one in found.scores]
    # 0, 1: both models solve them; 2, 3: one does; 4, 5: one does every other time; 6: the other one; 7, …: nobody.
    assert scores == pytest.approx([0, 0, 0.5, 0.5, 0.75, 0.75, 0.5, 1, 1, 1, 1, 1])
    assert found.configurations == ("a · mini_swe_agent", "b · mini_swe_agent")
    assert [curve.configuration for curve in found.curves] == ["all", *found.configurations]
    buckets = {bucket.low: bucket for bucket in found.curves[0].buckets if bucket.pairs}
    assert {low: bucket.pairs for low, bucket in buckets.items()} == {
        0.0: 2,
        0.5: 3,
        0.7: 2,
        0.9: 5,
    }
    assert (buckets[0.0].solo.value, buckets[0.0].solo.n) == (1.0, 6)
    assert (buckets[0.5].solo.value, buckets[0.5].solo.n) == pytest.approx((5 / 9, 9))
    # One of the five hardest ended in an error once: it is not among the verdicts.
    assert (buckets[0.9].solo.value, buckets[0.9].solo.n) == (0.0, 14)
    assert [buckets[low].together.value for low in buckets] == pytest.approx([0.5, 1 / 3, 0, 0])
    solo = area([(0.05, 1.0), (0.55, 5 / 9), (0.75, 1 / 3), (0.95, 0.0)])
    coop = area([(0.05, 0.5), (0.55, 1 / 3), (0.75, 0.0), (0.95, 0.0)])
    assert solo is not None
    assert coop is not None
    curve = found.curves[0]
    assert (curve.solo_area, curve.together_area) == pytest.approx((solo, coop))
    assert curve.delta_area == pytest.approx(solo - coop)
    assert curve.retention == pytest.approx(coop / solo)
    print_tables(analysis_tables(analyse(runs)))
    assert "ΔAUC" in capsys.readouterr().out


def test_a_bucket_is_not_missed_by_rounding(tmp_path: Path) -> None:
    """Ten models, of which nine solve a pair: its difficulty is exactly a tenth."""
    runs = [
        made(tmp_path, f"m{number}", {0} | ({1} if number else set()), "solo", model=f"m{number}")
        for number in range(10)
    ]
    found = analyse_difficulty([*runs, made(tmp_path, "c", {0}, model="m0")])
    assert [bucket.pairs for bucket in found.curves[0].buckets] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 10]


def test_teams_have_a_curve_beside_that_of_coop(tmp_path: Path) -> None:
    solo, coop, team = (made(tmp_path, one, {0}, one) for one in ("solo", "coop", "team"))
    found = analyse_difficulty([solo, coop, made(tmp_path, "team2", {0, 1}, "team"), team])
    assert [(curve.configuration, curve.setting) for curve in found.curves] == [
        ("all", "coop"),
        ("all", "team"),
    ]
    assert [curve.buckets[-1].together.n for curve in found.curves] == [11, 22]
    assert found.curves[1].buckets[-1].together.value == pytest.approx(1 / 22)


def test_without_a_scale_there_are_no_curves(tmp_path: Path) -> None:
    coop, solo = made(tmp_path, "c", {0}), made(tmp_path, "s", set(range(12)), "solo")
    assert analyse_difficulty([coop]).unscored == 12
    for runs in ([coop], [solo], [solo, coop]):
        assert analyse_difficulty(runs).curves == ()


def test_area_is_a_trapezoid() -> None:
    assert area([(0.0, 1.0), (0.5, 1.0), (1.0, 0.0)]) == pytest.approx(0.75)
    assert area([(0.5, 1.0)]) is None


@pytest.mark.parametrize(
    ("tries", "passed", "k"), [(5, 2, 1), (5, 2, 3), (4, 0, 2), (4, 4, 4), (6, 1, 6)]
)
def test_pass_at_k_is_the_share_of_all_choices(tries: int, passed: int, k: int) -> None:
    outcomes = [place < passed for place in range(tries)]
    choices = list(combinations(outcomes, k))
    assert pass_at_k(tries, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_runs_of_one_configuration_are_repetitions(tmp_path: Path) -> None:
    runs = [
        made(tmp_path, "r1", {0, 1, 2}),
        made(tmp_path, "r2", {0, 1}),
        made(tmp_path, "r3", {0, 3}, without={2}),
        made(tmp_path, "other", {0}, model="another"),
    ]
    (found,) = find_repeats(runs)
    assert found.runs == ("r1", "r2", "r3")
    assert [one.label for one in found.flaky] == [key.label for key in KEYS[1:4]]
    assert (found.flaky[1].passed, found.flaky[1].of) == (1, 2)
    assert {k: estimate.n for k, estimate in found.pass_at.items()} == {1: 12, 2: 12, 3: 11}
    assert found.pass_at[1].value == pytest.approx((1 + 2 / 3 + 1 / 2 + 1 / 3) / 12)
    assert found.pass_at[3].value == pytest.approx(3 / 11)


def test_cross_play_tells_who_works_with_whom(tmp_path: Path) -> None:
    def kind(key: PairKey) -> Kind:
        return "capability" if key == KEYS[0] else "passed"

    for name, models in (("ab", ("a", "b")), ("ba", ("b", "a")), ("aa", ("a", "a"))):
        write_run(
            tmp_path,
            name,
            PAIRS,
            kind if name == "ab" else "passed",
            style=Style(bare=True, models=models),
        )
    found = cross_play([load_run(tmp_path, name) for name in ("ab", "ba", "aa")])
    a, b = found.configurations
    assert (a, b) == ("a · mini_swe_agent", "b · mini_swe_agent")
    cells = {(one.agent1, one.agent2): one.overall.value for one in found.cells}
    assert cells == {(a, b): pytest.approx(11 / 12), (b, a): 1.0, (a, a): 1.0}
