"""A comparison as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.report.numbers import basis_text, key_text, p_text, points_text, rate_text
from cooperbench.report.tables import Table
from cooperbench.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cooperbench.report.compare import Comparison, Unpaired

MOST_UNPAIRED = 40


def comparison_tables(comparison: Comparison, problems: Sequence[str] = ()) -> Iterator[Table]:
    """The numbers, the flips, and what could not be compared."""
    yield _numbers(comparison)
    for title, keys in (
        (f"Lost: passed in {comparison.first}, failed in {comparison.second}", comparison.lost),
        (f"Gained: failed in {comparison.first}, passed in {comparison.second}", comparison.gained),
    ):
        if keys:
            marks = dict.fromkeys(comparison.unsound, " (unsound)")
            yield Table(f"{title} ({len(keys)})", notes=[key_text(key) + marks.get(key, "") for key in keys])
    if comparison.unpaired:
        yield _unpaired(comparison, comparison.unpaired)
    if problems:
        yield Table("Could not be read", notes=problems)


def _numbers(comparison: Comparison) -> Table:
    first, second = comparison.first_rate, comparison.second_rate
    rows = [
        [comparison.first, rate_text(first), f"{_count(first.value, first.n)}/{first.n}"],
        [comparison.second, rate_text(second), f"{_count(second.value, second.n)}/{second.n}"],
        ["difference", points_text(comparison.difference), ""],
    ]
    if comparison.deficit is not None:
        rows.append(["coordination deficit (solo − coop)", points_text(comparison.deficit), ""])
    if comparison.retention is not None:
        rows.append(["retention (coop ∕ solo)", rate_text(comparison.retention), ""])
    flips = f"{len(comparison.gained)} gained, {len(comparison.lost)} lost"
    notes = [
        f"difference: {basis_text(comparison.difference)}",
        f"McNemar's exact test: {p_text(comparison.p_value)} ({flips}; it takes pairs for independent)",
    ]
    if comparison.retention is not None and comparison.retention.note:
        notes.append(f"retention: {comparison.retention.note}")
    if comparison.sound is not None:
        notes.append(_without_unsound(comparison.sound, len(comparison.unsound)))
    title = f"{comparison.verdict} over {plural(comparison.n, 'pair')} with a verdict on both sides"
    return Table(title, ("", "", "passed"), rows, notes)


def _without_unsound(sound: Comparison, unsound: int) -> str:
    rates = f"{sound.first} {rate_text(sound.first_rate)}, {sound.second} {rate_text(sound.second_rate)}"
    return f"without {plural(unsound, 'unsound pair')}: {rates}, difference {points_text(sound.difference)}"


def _count(value: float | None, n: int) -> int:
    return round((value or 0.0) * n)


def _unpaired(comparison: Comparison, unpaired: Sequence[Unpaired]) -> Table:
    rows = [[key_text(one.key), one.first_state, one.second_state] for one in unpaired[:MOST_UNPAIRED]]
    more = len(unpaired) - len(rows)
    notes = [f"… {more} more (--json has all)"] if more else []
    return Table(
        f"Not compared ({len(unpaired)})", ("pair", comparison.first, comparison.second), rows, notes
    )
