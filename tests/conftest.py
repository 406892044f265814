"""What all tests share: folders of their own instead of the user's, and a word on what cannot run here."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.requirements import reason_of_skip, summarize_skips

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = [
    "tests.support.backend_fixtures",
    "tests.support.model_fixtures",
    "tests.support.report.page_fixtures",
]
TIERS = ("unit", "integration", "external")
settings.register_profile("steady", derandomize=True, database=None, deadline=None, max_examples=50)
settings.register_profile("explore", deadline=None)
settings.load_profile("steady")

# Hundreds of processes import the same modules: they are compiled once, also where the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Users do not have it: what is written late has to be written at all.
os.environ.pop("PYTHONUNBUFFERED", None)
gc.disable()  # while tests are collected: what is made then stays

# In the background of a script (`nohup make test &`) SIGINT is ignored, and all processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Short: a test's name is in the environment of all processes that are started while it runs."""
    return ascii(val[:40]) if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, which is the folder it is in: `-m 'not external'`."""
    for item in items:
        tier = item.nodeid.split("/")[1]
        if tier in TIERS:
            item.add_marker(tier)


def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Templates are made once per test process; nobody's settings are read or changed."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COOPERBENCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in [
        name
        for name in os.environ
        if name.startswith(("COOPERBENCH_BACKEND", "COOPERBENCH_DATASET", "COOPERBENCH_EVAL"))
    ]:
        patch.delenv(name)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _no_engine_settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that use an engine set it for their whole session; it is not for the others."""
    if "engine_variables" not in request.fixturenames:
        for name in (
            "COOPERBENCH_IMAGE_TEMPLATE",
            "COOPERBENCH_DOCKER_PULL",
            "COOPERBENCH_BUILD_ARGS",
        ):
            monkeypatch.delenv(name, raising=False)
        for name in ("MSWEA_DOCKER_EXECUTABLE", "DOCKER_HOST", "CONTAINER_HOST"):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hangup() -> Iterator[None]:
    """Processes of the test get SIGHUP, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """End with a table of the requirements that this machine does not meet, and remember whose tests they are."""
    reports = terminalreporter.stats.get("skipped", [])
    lines = summarize_skips(reports)
    if lines:
        terminalreporter.section("Skipped: this machine lacks something")
        for line in lines:
            terminalreporter.line(line)
    skipped = [report.nodeid for report in reports if reason_of_skip(report)]
    # Without the plugin of the cache (`-p no:cacheprovider`), there is no such attribute.
    cache = getattr(config, "cache", None)
    if cache is not None:
        cache.set("cooperbench/skipped", skipped)
