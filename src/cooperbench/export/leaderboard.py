"""A leaderboard of submissions: `cooperbench report --leaderboard FOLDER`.

Every submission is verified, against the logs of its run where they are. One that fails is not
listed, and the page says why. A table has only results over the same pairs of the same dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from cooperbench.errors import UserError
from cooperbench.export.submission import Submission, SubmittedPair
from cooperbench.export.verification import Verified, verify_submission
from cooperbench.models import SETTINGS, Setting
from cooperbench.records.usage import sum_if_known
from cooperbench.report import Method, statistics
from cooperbench.report.formatting import basis_text, rate_text
from cooperbench.report.pairs import EVALUATED, PairKey, applicable_verdicts
from cooperbench.report.statistics import Estimate, Observation
from cooperbench.storage import write_bytes
from cooperbench.text import dollars_text, plural

Basis = Literal["logs", "itself"]
_MAX_SUBMISSION_BYTES = 64 * 1024 * 1024
_MAX_LINES = 10
_HIDDEN_CONFIGURATION = ("agent", "model_name")
"""Parts of the configuration that have a column of their own."""
_TEMPLATE = "leaderboard.html.j2"


@dataclass(frozen=True)
class Entry:
    """One setting of one submission."""

    file: str
    run: str
    model: str
    agent: str
    basis: Basis
    """What it was verified against: the logs of its run, or only itself."""
    imported: bool
    pairs: int
    evaluated: int
    rates: dict[str, Estimate]
    """By the name of the verdict."""
    cost: float | None
    """US dollars, all pairs together; None if it is not known."""
    unpriced_calls: int
    configuration: dict[str, str]
    unchecked: tuple[str, ...]
    """What could not be verified, one line each."""

    @property
    def overall(self) -> float:
        """The rate that entries are ordered by."""
        return self.rates["overall"].value or 0.0

    @property
    def cost_text(self) -> str:
        """The cost of a pair, for people."""
        if self.cost is None or not self.pairs:
            return "not known"
        text = dollars_text(self.cost / self.pairs)
        return f"at least {text}" if self.unpriced_calls else text

    def rate_text(self, verdict: str) -> str:
        """Return a rate with its interval, for people."""
        return rate_text(self.rates[verdict]) if verdict in self.rates else "–"

    @property
    def basis_text(self) -> str:
        """The sample behind the overall rate, for people."""
        return basis_text(self.rates["overall"])


@dataclass(frozen=True)
class Board:
    """The entries over the same pairs in the same setting, the best first."""

    setting: Setting
    dataset: str
    pairs: int
    tasks: int
    checksum: str
    """Of the pairs and of their files in the dataset."""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Rejected:
    """A file that is not listed."""

    file: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Leaderboard:
    """All submissions in a folder."""

    boards: tuple[Board, ...]
    rejected: tuple[Rejected, ...]


def read_leaderboard(folder: Path, logs_dir: Path, method: Method = "clustered") -> Leaderboard:
    """Verify the submissions in a folder and order them.

    Raises:
        UserError: There is no such folder, or there are no JSON files in it.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name a folder of submission files")
    files = sorted(path for path in folder.glob("*.json") if not path.is_symlink())
    if not files:
        raise UserError(
            f"there are no submissions (*.json) in {folder}; "
            "make them with `cooperbench export RUN --format leaderboard -o FILE`"
        )
    groups: list[_Group] = []
    rejected = []
    seen: dict[str, str] = {}
    for path in files:
        verified = _verify(path, logs_dir)
        problems = _problems(path.name, verified, seen)
        if verified.submission is None or problems:
            rejected.append(Rejected(path.name, tuple(problems[:_MAX_LINES])))
            continue
        for setting, pairs in _pairs_by_setting(verified.submission):
            entry = _make_entry(path.name, verified, verified.submission, pairs, method)
            _add_entry(groups, setting, pairs, entry, _dataset_text(verified.submission))
    boards = [_make_board(group) for group in groups]
    boards.sort(key=lambda board: (SETTINGS.index(board.setting), -board.pairs, board.checksum))
    return Leaderboard(tuple(boards), tuple(rejected))


@dataclass
class _Group:
    """Entries over the same pairs."""

    setting: Setting
    dataset: str
    contents: dict[PairKey, str | None]
    """Checksum of the dataset's files of each pair; None as long as no entry says it."""
    entries: list[Entry]

    def accepts(self, setting: Setting, contents: Mapping[PairKey, str | None]) -> bool:
        """Whether pairs are those of this group, as far as their files are known."""
        if setting != self.setting or contents.keys() != self.contents.keys():
            return False
        for key, checksum in contents.items():
            if checksum and self.contents[key] and checksum != self.contents[key]:
                return False
        return True


def _add_entry(
    groups: list[_Group],
    setting: Setting,
    pairs: Sequence[SubmittedPair],
    entry: Entry,
    dataset: str,
) -> None:
    """Add an entry to the group of its pairs; make a new one if there is none."""
    contents = {_key_of(pair): _content_of(pair) for pair in pairs}
    for group in groups:
        if group.accepts(setting, contents):
            group.entries.append(entry)
            checksums = {key: checksum for key, checksum in contents.items() if checksum}
            group.contents |= checksums
            return
    groups.append(_Group(setting, dataset, contents, [entry]))


def _verify(path: Path, logs_dir: Path) -> Verified:
    if path.stat().st_size > _MAX_SUBMISSION_BYTES:
        text = f"it is larger than {_MAX_SUBMISSION_BYTES >> 20} MiB"
        return Verified([text], [], 0, None, None)
    return verify_submission(path, logs_dir)


def _problems(name: str, verified: Verified, seen: dict[str, str]) -> list[str]:
    """Return why a submission is not listed: it is not valid, or it is there twice."""
    problems = list(verified.mismatches)
    submission = verified.submission
    if submission is None or problems:
        return problems
    first = seen.setdefault(submission.checksum, name)
    if first != name:
        problems.append(f"it is the same submission as {first}")
    if not any(pair.state in EVALUATED for pair in submission.pairs):
        problems.append("it has no verdicts")
    return problems


def _pairs_by_setting(submission: Submission) -> Iterator[tuple[Setting, list[SubmittedPair]]]:
    """Yield the settings of a submission that have a verdict, with all their pairs."""
    for setting in SETTINGS:
        pairs = [pair for pair in submission.pairs if pair.setting == setting]
        if any(pair.state in EVALUATED for pair in pairs):
            yield setting, pairs


def _key_of(pair: SubmittedPair) -> PairKey:
    return PairKey(pair.repo, pair.task_id, tuple(pair.features))


def _content_of(pair: SubmittedPair) -> str | None:
    """Return the checksum of the pair's files in the dataset; None if the submission has none."""
    options = pair.options
    if options is None:
        return None
    for part in (options.evaluation, options.run):
        if part is not None and part.dataset_sha256:
            return part.dataset_sha256
    return None


def _make_entry(
    file: str,
    verified: Verified,
    submission: Submission,
    pairs: Sequence[SubmittedPair],
    method: Method,
) -> Entry:
    setting = _setting_of(pairs)
    return Entry(
        file=file,
        run=submission.run,
        model=str(submission.configuration.get("model_name") or "not known"),
        agent=str(submission.configuration.get("agent") or "not known"),
        basis="itself" if verified.run is None else "logs",
        imported=_is_imported(submission),
        pairs=len(pairs),
        evaluated=len([pair for pair in pairs if pair.state in EVALUATED]),
        rates={name: _rate(pairs, name, method) for name in applicable_verdicts(setting)},
        cost=sum_if_known(pair.cost for pair in pairs),
        unpriced_calls=sum(pair.unpriced_calls or 0 for pair in pairs),
        configuration=_shown_configuration(submission),
        unchecked=tuple(_unchecked(verified, pairs)),
    )


def _is_imported(submission: Submission) -> bool:
    return submission.options is not None and submission.options.imported is not None


def _shown_configuration(submission: Submission) -> dict[str, str]:
    """Return the known parts of the configuration that have no column, and the versions."""
    shown_texts = {}
    for name, value in submission.configuration.items():
        if value is not None and name not in _HIDDEN_CONFIGURATION:
            shown_texts[name] = str(value)
    return shown_texts | {"versions": ", ".join(submission.versions)}


def _setting_of(pairs: Sequence[SubmittedPair]) -> Setting:
    for setting in SETTINGS:
        if setting == pairs[0].setting:
            return setting
    raise AssertionError("pairs are selected by their setting")


def _rate(pairs: Sequence[SubmittedPair], verdict: str, method: Method) -> Estimate:
    observations = []
    for pair in pairs:
        value = (pair.verdicts or {}).get(verdict)
        if value is not None:
            observations.append(Observation(_key_of(pair), float(value)))
    return statistics.rate(observations, method)


def _unchecked(verified: Verified, pairs: Sequence[SubmittedPair]) -> Iterator[str]:
    """Yield what could not be verified of the pairs of one setting."""
    if verified.run is None:
        yield "the logs are not here: only the submission itself was checked"
    without = [pair for pair in pairs if pair.state not in EVALUATED]
    if without:
        yield f"{plural(len(without), 'pair')} of {len(pairs):,} without a verdict"
    yield from verified.unchecked


def _dataset_text(submission: Submission) -> str:
    name = submission.dataset.name or "unknown dataset"
    revision = submission.dataset.revision
    return f"{name} at revision {revision}" if revision else name


def _make_board(group: _Group) -> Board:
    lines = [f"{key.label} {checksum}\n" for key, checksum in sorted(group.contents.items())]
    ordered = sorted(group.entries, key=lambda entry: (-entry.overall, entry.run, entry.file))
    return Board(
        setting=group.setting,
        dataset=group.dataset,
        pairs=len(group.contents),
        tasks=len({(key.repo, key.task_id) for key in group.contents}),
        checksum=sha256("".join(lines).encode()).hexdigest(),
        entries=tuple(ordered),
    )


def leaderboard_bytes(leaderboard: Leaderboard) -> bytes:
    """Return the page: one HTML file without scripts, which loads nothing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cooperbench.export", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(_TEMPLATE).render(leaderboard=leaderboard)
    return text.encode("utf-8", "backslashreplace")


def write_leaderboard(leaderboard: Leaderboard, target: Path) -> None:
    """Write the page.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        write_bytes(target, leaderboard_bytes(leaderboard))
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
