"""What `report` says of studies, on synthetic arms whose differences are known."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.cli import main
from cooperbench.errors import UserError
from cooperbench.report.contingency import cochran_armitage
from cooperbench.report.loading import arm_folders, load_folder, run_names
from cooperbench.report.pairs import VERDICTS, PairKey
from cooperbench.report.statistics import Observation, Sample, grouped, holm, p_value
from cooperbench.report.studies import Study, analyse_studies
from tests.support.report.factory import Kind, Style, keys_of, layout, write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FIELDS = {"messages": "messaging_enabled", "git": "git_enabled"}
PAIRS = layout(2, 8, 24)


def write_arm(logs: Path, name: str, off: tuple[str, ...], lost: int, **changes: Any) -> None:
    """An arm in which the first pairs of each task, `lost` of three, fail."""

    def kind_of(key: PairKey) -> Kind:
        place = PAIRS[key.repo][key.task_id].index(key.features)
        return "conflict" if place < lost + (key.task_id % 2 if off else 0) else "passed"

    paths = write_run(logs, name, PAIRS, kind_of, style=Style(bare=True, cost=0.5 if off else 0.25))
    config = json.loads(paths.config.read_text()) | {"git_enabled": True} | changes
    config |= {FIELDS[part]: False for part in off}
    paths.config.write_text(json.dumps(config))


def write_study(
    logs: Path, arms: Mapping[str, tuple[tuple[str, ...], int]], **changes: Any
) -> Path:
    for name, (off, lost) in arms.items():
        write_arm(logs, f"study/{name}", off, lost, **(changes if off else {}))
    listed = [{"name": name, "off": list(off), "round": 1} for name, (off, _) in arms.items()]
    record = {"schema": "cooperbench.study/1", "study": "study", "parts": FIELDS, "arms": listed}
    (logs / "study/study.json").write_text(json.dumps(record))
    return logs / "study"


def analysed(folder: Path) -> Study:
    (found,) = analyse_studies([load_folder(arm) for arm in arm_folders(folder)])
    return found


ONE_OFF: dict[str, tuple[tuple[str, ...], int]] = {
    "all": ((), 0), "no-messages": (("messages",), 1), "no-git": (("git",), 0),
}  # fmt: skip


def test_each_part_is_paired_by_group_and_clustered_by_task(tmp_path: Path) -> None:
    found = {
        (one.factor, one.measure): one for one in analysed(write_study(tmp_path, ONE_OFF)).effects
    }
    messages, git = found["messages", "overall"], found["git", "overall"]
    assert (messages.first, messages.last) == (0.5, 1.0)
    assert messages.difference.value == 0.5
    assert (messages.difference.n, messages.difference.clusters) == (24, 8)
    changes = [
        Observation(PairKey(repo, task, features), float(place < 1 + task % 2))
        for repo, tasks in PAIRS.items()
        for task, groups in tasks.items()
        for place, features in enumerate(groups)
    ]
    assert messages.p == pytest.approx(p_value(changes))
    assert git.difference.value == pytest.approx(1 / 6)
    assert messages.p is not None
    assert git.p is not None
    assert [messages.p_holm, git.p_holm] == pytest.approx(holm([messages.p, git.p]))
    assert found["messages", "conflict"].difference.value == -0.5
    assert found["messages", "merge"].difference.value == 0.5
    assert found["messages", "individual"].difference.value == 0.0
    assert found["messages", "cost"].difference.value == pytest.approx(-0.5)
    assert found["messages", "cost"].p_holm == pytest.approx(2 * 2.0**-7)
    assert messages.pairs_needed is None
    assert git.pairs_needed is not None
    assert git.pairs_needed > 24


def test_the_full_factorial_averages_over_the_other_parts(tmp_path: Path) -> None:
    arms = {**ONE_OFF, "no-messages+git": (("messages", "git"), 2)}
    found = {
        (one.factor, one.measure): one for one in analysed(write_study(tmp_path, arms)).effects
    }
    # Passed of 24: 24 with all, 12 without messages, 20 without git, 4 without both.
    assert found["messages", "overall"].difference.value == pytest.approx((12 + 16) / 48)
    assert found["git", "overall"].difference.value == pytest.approx((4 + 8) / 48)


def test_repetitions_are_averaged_first(tmp_path: Path) -> None:
    arms = {**ONE_OFF, "no-messages@2": (("messages",), 0)}
    found = {
        (one.factor, one.measure): one for one in analysed(write_study(tmp_path, arms)).effects
    }
    assert found["messages", "overall"].difference.value == pytest.approx((12 + 4) / 48)
    assert found["messages", "overall"].difference.n == 24


def test_arms_that_differ_in_more_than_their_part_are_refused(tmp_path: Path) -> None:
    folder = write_study(tmp_path, ONE_OFF, network="public")
    with pytest.raises(
        UserError,
        match=r"^study/no-messages differs from study/all in more than its levels: network$",
    ):
        analysed(folder)


def test_a_study_in_every_command_that_takes_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_study(tmp_path, ONE_OFF)
    logs = ["--log-dir", str(tmp_path)]
    assert main(["report", "study", *logs]) == 0
    out = capsys.readouterr().out
    assert "Effects: study" in out
    assert "study/no-git:coop" in out
    row = next(line for line in out.splitlines() if line.split()[:2] == ["messages", "overall"])
    assert "+50.0 points [+25.3, +74.7]" in row.replace("\u00a0", " ")
    assert main(["report", str(folder), "--json", *logs]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["study"] for one in content["studies"]] == ["study"]
    assert len(content["studies"][0]["effects"]) == 16
    assert [run["name"] for run in content["runs"]] == [
        "study/all",
        "study/no-messages",
        "study/no-git",
    ]
    assert set(run_names(tmp_path)) == {"study/all", "study/no-messages", "study/no-git"}
    assert main(["report", "study/no-git", *logs]) == 0
    assert main(["export", "study/no-git", "--format", "csv", *logs]) == 0
    assert main(["compare", "study/all", "study/no-git", *logs]) == 0
    capsys.readouterr()
    assert main(["compare", "study", "study/all", *logs]) == 2
    assert (
        "study is a study: name one of its arms, for example study/all" in capsys.readouterr().err
    )
    assert main(["report", "study", "--html", str(tmp_path / "page.html"), *logs]) == 0


def write_dose(logs: Path, failing: Mapping[str, int], **changes: Any) -> list[Observation]:
    """Arms with a number of messages each, in which the first pairs of each task fail, and one more in some tasks.

    Returns the outcomes in the order of arms and pairs.
    """
    observations = []
    arms = []
    for place, (level, lost) in enumerate(failing.items()):

        def is_lost(key: PairKey, place: int = place, lost: int = lost) -> bool:
            index = PAIRS[key.repo][key.task_id].index(key.features)
            return index < lost + (key.task_id * (place + 1)) % 3 // 2

        def kind_of(key: PairKey, is_lost: Callable[[PairKey], bool] = is_lost) -> Kind:
            return "conflict" if is_lost(key) else "passed"

        paths = write_run(logs, f"dose/messages={level}", PAIRS, kind_of, style=Style(bare=True))
        budget = None if level == "unlimited" else int(level)
        config = json.loads(paths.config.read_text()) | changes
        paths.config.write_text(
            json.dumps(config | ({"message_budget": budget} if budget is not None else {}))
        )
        levels, options = {"messages": level}, {"message_budget": budget}
        arms.append({"name": f"messages={level}", "levels": levels, "options": options, "round": 1})
        observations += [Observation(key, float(not is_lost(key))) for key in keys_of(PAIRS)]
    factor = {
        "name": "messages",
        "levels": list(failing),
        "is_ordered": True,
        "options": ["message_budget"],
    }
    record = {"schema": "cooperbench.study/2", "study": "dose", "factors": [factor], "arms": arms}
    (logs / "dose/study.json").write_text(json.dumps(record))
    return observations


def test_dose_and_response(tmp_path: Path) -> None:
    """The trend over tasks is the slope of a regression with standard errors clustered by task."""
    observations = write_dose(tmp_path, {"0": 2, "1": 2, "3": 1, "unlimited": 0})
    study = analysed(tmp_path / "dose")
    (curve,) = study.factors
    count = len(observations) // 4
    passed = [
        sum(observation.value for observation in observations[place * count : (place + 1) * count])
        for place in range(4)
    ]
    assert passed == [5, 5, 16, 21]
    rates = [point.means["overall"].value for point in curve.points]
    assert rates == pytest.approx([number / 24 for number in passed])
    (effect,) = [effect for effect in study.effects if effect.measure == "overall"]
    assert effect.difference.value == pytest.approx(16 / 24)
    assert effect.slope is not None
    numpy, api = import_module("numpy"), import_module("statsmodels.api")
    doses = numpy.repeat(numpy.arange(4.0), count)
    values = numpy.array([observation.value for observation in observations])
    tasks = numpy.array([observation.key.task_id for observation in observations])
    fitted = api.OLS(values, api.add_constant(doses)).fit(
        cov_type="cluster", cov_kwds={"groups": tasks, "use_correction": False}, use_t=True
    )
    assert effect.slope.value == pytest.approx(fitted.params[1])
    error = fitted.bse[1] * (8 / 7) ** 0.5
    contrast = [
        Observation(
            key, sum(weight * value for weight, value in zip((-3, -1, 1, 3), of_pair, strict=True))
        )
        for key, of_pair in grouped(observations).items()
    ]
    clustered = Sample(contrast).clustered_variance ** 0.5 / 10
    assert clustered == pytest.approx(error, rel=1e-9)
    assert effect.p == pytest.approx(p_value(contrast), rel=1e-9)
    assert effect.slope.low is not None
    assert effect.slope.low > 0
    assert effect.stratified is not None
    assert effect.stratified.by_pair is not None
    assert effect.stratified.cochran_armitage_p == pytest.approx(
        cochran_armitage(passed, [24] * 4)[1]  # type: ignore[index]
    )
    assert effect.status == "exploratory"


def test_levels_without_some_verdicts_leave_their_pairs_out(tmp_path: Path) -> None:
    write_dose(tmp_path, {"0": 2, "3": 0})
    lost = next((tmp_path / "dose/messages=3/coop").glob("*/*/*/eval.json"))
    lost.unlink()
    study = analysed(tmp_path / "dose")
    assert {effect.difference.n for effect in study.effects if effect.measure in VERDICTS} == {23}


def test_an_arm_without_the_level_that_it_should_have_is_refused(tmp_path: Path) -> None:
    write_dose(tmp_path, {"0": 2, "3": 0})
    path = tmp_path / "dose/messages=3/config.json"
    path.write_text(path.read_text().replace('"message_budget": 3', '"message_budget": 4'))
    with pytest.raises(UserError, match=r"in more than its levels: message_budget$"):
        analysed(tmp_path / "dose")
