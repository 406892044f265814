"""Many pairs are packed by other processes: the same in the same order, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.report.loading import load_run
from cooperbench.report.page.build import pack_pair
from cooperbench.report.page.workers import FEWEST_PAIRS, Packed, pack_all, process_count
from tests.report.factory import Kind, layout, share, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cooperbench.report.loading import PairData

KINDS: dict[Kind, float] = {"passed": 2, "conflict": 2, "error": 1, "missing": 1, "killed": 1, "broken": 1}


@pytest.fixture
def pairs(tmp_path: Path) -> Sequence[PairData]:
    write_run(tmp_path, "r", layout(2, 4, 24), share(KINDS))
    return load_run(tmp_path, "r").pairs


def refuse(pair: PairData) -> Packed:
    raise AssertionError(f"{pair.label} was not packed by a process")


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


def test_processes_do_what_we_would_do_and_end(pairs: Sequence[PairData]) -> None:
    before = children()
    here = [pack_pair(pair) for pair in pairs]
    assert list(pack_all(pairs, refuse, processes=2)) == here
    broken_off = pack_all(pairs, refuse, processes=2)
    assert next(broken_off) == here[0]
    assert len(children() - before) == 2
    broken_off.close()
    assert children() <= before


def test_what_a_process_does_not_do_is_done_here(
    pairs: Sequence[PairData], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [pack_pair(pair) for pair in pairs]
    before = children()
    packing = pack_all(pairs, pack_pair, processes=2)
    first = next(packing)
    for worker in children() - before:
        os.kill(worker, signal.SIGKILL)
    assert [first, *packing] == here
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert list(pack_all(pairs, pack_pair, processes=2)) == here


def test_few_pairs_need_no_processes() -> None:
    assert process_count(FEWEST_PAIRS - 1) == 0
    assert process_count(10_000) <= 4
