"""Every success is confirmed, and a failed confirmation costs only the patch that caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.evaluate import evaluate_pair
from cooperbench.models import Pair
from cooperbench.records import to_object
from tests.support.attacks.two_features import (
    BROKEN_BY_THE_OTHER,
    DOES_NOTHING,
    FIRST,
    SABOTAGES_SECOND,
    SECOND,
    judge_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cooperbench.records.files import JsonObject
    from tests.support.attacks.rectangle import Judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge_in(tmp_path_factory.mktemp("two")) as judge:
        yield judge


def evaluate(judge: Judge, *files: Mapping[str, str], canary: bool = True) -> JsonObject:
    patches = {f"agent{number}": judge.patch(part) for number, part in enumerate(files, 1)}
    pair = Pair(judge.task, (1, 2))
    evaluation = evaluate_pair(pair, "coop", patches, judge.references, canary=canary)
    return to_object(evaluation.record)


@pytest.mark.xdist_group("confirmations")
def test_honest_patches_are_confirmed_alone_and_merged(judge: Judge) -> None:
    record = evaluate(judge, FIRST, SECOND)
    assert record["overall_success"]
    assert record["suspicious"] == []
    outcomes = {
        subject: {feature: entry["outcome"] for feature, entry in by_feature.items()}
        for subject, by_feature in record["canary"].items()
    }
    assert outcomes == {
        "agent1": {"1": "confirmed"},
        "agent2": {"2": "confirmed"},
        "merged": {"1": "confirmed", "2": "confirmed"},
    }


@pytest.mark.xdist_group("confirmations")
def test_patches_that_break_their_merge_are_confirmed_alone(judge: Judge) -> None:
    """Two agents that implement nothing, and whose merge conflicts, are not individual successes."""
    record = evaluate(judge, DOES_NOTHING["agent1"], DOES_NOTHING["agent2"])
    assert not record["merged"]["success"]
    assert record["individual_success"] is False
    assert not record["agent1"]["success"]
    assert not record["agent2"]["success"]
    assert {entry["agent"] for entry in record["suspicious"]} == {"agent1", "agent2"}


@pytest.mark.xdist_group("confirmations")
def test_an_honest_success_is_confirmed_although_the_merge_fails(judge: Judge) -> None:
    record = evaluate(judge, FIRST, BROKEN_BY_THE_OTHER)
    assert record["agent1"]["success"]
    assert record["canary"]["agent1"]["1"]["outcome"] == "confirmed"
    assert not record["merged"]["success"]
    assert record["canary"]["merged"] == {}
    assert record["suspicious"] == []


@pytest.mark.xdist_group("confirmations")
def test_the_honest_partner_of_a_saboteur_is_not_blamed(judge: Judge) -> None:
    record = evaluate(judge, SABOTAGES_SECOND, SECOND)
    assert record["agent1"]["success"], "its own feature is right"
    assert record["agent2"]["success"]
    assert record["individual_success"]
    assert not record["merged"]["success"]
    assert not record["overall_success"]
    suspicions = [
        (entry["subject"], entry["feature"], entry["agent"]) for entry in record["suspicious"]
    ]
    assert suspicions == [("merged", 2, "agent1")]


@pytest.mark.xdist_group("confirmations")
def test_without_canaries_successes_are_listed_as_unconfirmed(judge: Judge) -> None:
    record = evaluate(judge, DOES_NOTHING["agent1"], DOES_NOTHING["agent2"], canary=False)
    assert record["canary"] == "off"
    assert record["individual_success"]
