"""Build packages in a dependency layer: used only where they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.conditions import BUILD_PACKAGES, Conditions
from tests.support.eval.scripted_backend import Call, ReferenceLab, pytest_output

if TYPE_CHECKING:
    from pathlib import Path

WITH_LAYER = Conditions("none", installed=True)
CHANGES_CODE = b"diff --git a/src/x.py b/src/x.py\n+++ b/src/x.py\n@@ -0,0 +1 @@\n+pyproject.toml\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(("passes_with_build_packages", "expected"), [(True, True), (False, False)])
def test_build_packages_stay_if_the_runner_ends_in_the_same_way(
    tmp_path: Path, passes_with_build_packages: bool, expected: bool
) -> None:
    def runner(call: Call) -> tuple[int, str]:
        if call.step == "bare":
            return 1, "ERROR: No matching distribution found for widget\n"
        base_passes = call.step != "build" or passes_with_build_packages
        return pytest_output(test_base=base_passes, test_feature=call.has_feature)

    lab = ReferenceLab(tmp_path, runner)
    lab.backend.build_packages = "setuptools\nwheel\n"
    with lab.process() as references:
        assert references.get(lab.task.feature(1)).installed
    assert lab.steps == ["bare", "install", "build", "layer"]
    (paths,) = lab.backend.snapshots.values()
    assert (BUILD_PACKAGES in paths) is expected


@pytest.mark.parametrize("path", ["pyproject.toml", "libs/core/setup.py", "setup.cfg"])
def test_a_patch_that_changes_the_build_is_built_afresh(path: str) -> None:
    name = "COOPERBENCH_USE_BUILD_PACKAGES"
    assert WITH_LAYER.env_for(CHANGES_CODE)[name] == "1"
    changes_build = f"diff --git a/{path} b/{path}\n".encode()
    assert name not in WITH_LAYER.env_for(CHANGES_CODE + changes_build)
    assert name not in Conditions("none").env_for(CHANGES_CODE)
    assert name not in Conditions("public", installed=True).env_for(CHANGES_CODE)
