"""Many pairs are packed by other processes: the same in the same order, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.errors import UserError
from cooperbench.report.loading import load_run
from cooperbench.report.page import build
from cooperbench.report.page.build import FEWEST_PAIRS, Packed, pack_all, pack_pair, process_count
from tests.report.factory import Kind, layout, share, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.pairs import PairData

KINDS: dict[Kind, float] = {"passed": 2, "conflict": 2, "error": 1, "missing": 1, "killed": 1, "broken": 1}


@pytest.fixture
def pairs(tmp_path: Path) -> Sequence[PairData]:
    write_run(tmp_path, "r", layout(2, 4, 24), share(KINDS))
    return load_run(tmp_path, "r").pairs


def many(pairs: Sequence[PairData]) -> Sequence[PairData]:
    """More than fit into pipes: the processes are not done before somebody reads."""
    return [*pairs] * 40


def who_packs(_pair: PairData) -> Packed:
    return Packed(str(os.getpid()).encode(), None)


def children() -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything.
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(status.parent.name))
    return found


def test_processes_do_what_we_would_do_and_end(
    pairs: Sequence[PairData], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    here = [pack_pair(pair) for pair in pairs]
    assert list(pack_all(pairs, processes=2)) == here
    broken_off = pack_all(many(pairs), processes=2)
    assert next(broken_off) == here[0]
    assert len(children() - before) == 2
    assert isinstance(broken_off, Generator)
    broken_off.close()
    assert children() <= before
    monkeypatch.setattr(build, "pack_pair", who_packs)
    packers = {packed.data for packed in pack_all(pairs, processes=2)}
    assert str(os.getpid()).encode() not in packers


def test_a_process_that_is_killed_is_one_line_for_the_user(pairs: Sequence[PairData]) -> None:
    before = children()
    packing = pack_all(many(pairs), processes=2)
    next(packing)
    for worker in children() - before:
        os.kill(worker, signal.SIGKILL)
    # What was packed before that may still come.
    with pytest.raises(UserError, match="was killed"):
        list(packing)


def test_processes_end_with_the_one_that_started_them(pairs: Sequence[PairData]) -> None:
    """Also when it is killed. Nothing guards this script against being imported again."""
    root = pairs[0].paths.folder.parents[3]
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from cooperbench.report.loading import load_run\n"
        "from cooperbench.report.page.build import pack_all\n"
        f"packing = pack_all(load_run(Path({str(root.parent)!r}), {root.name!r}).pairs * 40, processes=2)\n"
        "next(packing)\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"started\n"
        made.kill()
        # The workers hold the other end of the pipe: it is at its end when the last of them is gone.
        assert made.stdout.read() == b""


def test_few_pairs_need_no_processes_and_threads_forbid_them() -> None:
    assert process_count(FEWEST_PAIRS - 1) == 0
    assert process_count(10_000) <= 4
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert process_count(10_000) == 0
    finally:
        ended.set()
        thread.join()
