"""Verification of a leaderboard submission against itself and against the logs of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from cooperbench import records
from cooperbench.errors import UserError
from cooperbench.export.submission import (
    PairOptions,
    Submission,
    SubmittedPair,
    canonical,
    checksum_of,
    history_checksums,
    submission_of,
    summed_up,
)
from cooperbench.records import JsonObject
from cooperbench.report.loading import Run, load_run
from cooperbench.report.mismatch import mismatch_texts, unchecked_texts

_MAX_SHOWN_CHARACTERS = 100
_OLDER_SUBMISSION = "cannot be checked: options and mismatches, it is of an older version"


class Verified(NamedTuple):
    """The outcome of a verification."""

    mismatches: list[str]
    """One line for each; empty if the submission is valid."""
    unchecked: list[str]
    """One line for everything that cannot be checked."""
    pairs: int
    run: Run | None
    """The run that it was compared with; None if its logs are not here."""
    submission: Submission | None
    """None if the file is not a submission."""


def verify_submission(path: Path, logs_dir: Path, run: Run | None = None) -> Verified:
    """Verify a submission against itself and against its run.

    The run is `run`, or the one of the submission's name in the logs folder, if there is one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = json.loads(data)
        is_submission = isinstance(content, dict) and content.get("schema") == Submission.SCHEMA
        if not is_submission:
            problem = f"not a JSON object with the schema {Submission.SCHEMA}"
            return Verified([problem], [], 0, None, None)
        submission = records.from_object(content, Submission)
        mismatches = list(_inconsistencies(submission, content, data))
    except (ValueError, RecursionError):
        return Verified(["not complete JSON"], [], 0, None, None)
    if run is None and submission.run:
        with suppress(UserError):
            run = load_run(logs_dir, submission.run)
    declared: list[str] = []
    unchecked: list[str] = []
    if submission.options is not None:
        declared += submission.options.mismatches
        unchecked += submission.options.unchecked
    else:
        unchecked.append(_OLDER_SUBMISSION)
    if run is not None:
        mismatches += _compare_with_run(submission, run)
        declared += mismatch_texts(run.mismatches)
        unchecked += unchecked_texts(run.mismatches)
    mismatches += [f"the logs do not fit together: {text}" for text in dict.fromkeys(declared)]
    unchecked = list(dict.fromkeys(unchecked))
    return Verified(mismatches, unchecked, len(submission.pairs), run, submission)


def _compare_with_run(submission: Submission, run: Run) -> Iterator[str]:
    """Yield a line for each difference between a submission and the logs of its run."""
    from_logs = submission_of(run)
    if submission.options is None:
        from_logs = _without_options(from_logs)
    elif submission.options.history is not None:
        # The run may have gone on since.
        history = submission.options.history
        checksums = history_checksums(run)[: history.entries]
        if len(checksums) < history.entries or checksums[-1] != history.sha256:
            yield "history.jsonl in the logs does not continue the one of the submission"
    yield from _differences("", _comparable(submission), _comparable(from_logs))


def _without_options(submission: Submission) -> Submission:
    """Return a submission as older versions wrote it."""
    replace = msgspec.structs.replace
    pairs = [replace(pair, options=None) for pair in submission.pairs]
    return replace(submission, options=None, pairs=pairs)


def _inconsistencies(submission: Submission, content: JsonObject, data: bytes) -> Iterator[str]:
    """Yield what is wrong with a submission in itself."""
    understood = records.to_object(submission)
    if canonical(understood) != canonical(content):
        yield "it has fields that a submission does not have, or values of the wrong type"
    if submission.checksum != checksum_of(submission):
        yield f"its checksum is {_shorten(submission.checksum)}, not that of its content"
    if canonical(content) + b"\n" != data:
        yield "it is not in canonical form: not the bytes that were written"
    yield from _contradictions(submission)
    for name, value in msgspec.to_builtins(summed_up(submission.pairs)).items():
        if canonical(understood[name]) != canonical(value):
            yield f"{name} is {_shorten(understood[name])}, which does not follow from its pairs"


def _contradictions(submission: Submission) -> Iterator[str]:
    """Yield what the pairs of a submission contradict."""
    names = {pair.name for pair in submission.pairs}
    if len(names) != len(submission.pairs):
        yield "pairs lists a pair more than once"
    for pair in submission.pairs:
        yield from _pair_contradictions(pair)
    affected = [pair for pair in submission.pairs if pair.options and pair.options.mismatches]
    if affected and submission.options and not submission.options.mismatches:
        yield "its pairs have mismatches, its options do not list them"


def _pair_contradictions(pair: SubmittedPair) -> Iterator[str]:
    if not pair.is_consistent:
        yield f"{pair.name}: its verdicts do not match the state {_shorten(pair.state)}"
    if pair.options is not None and _hides_unconfirmed_successes(pair.options):
        yield f"{pair.name}: it has unconfirmed successes and does not say so"


def _hides_unconfirmed_successes(options: PairOptions) -> bool:
    evaluation = options.evaluation
    if evaluation is None or evaluation.canary is not False or not evaluation.unconfirmed:
        return False
    return "unconfirmed" not in options.mismatches


def _comparable(submission: Submission) -> JsonObject:
    """Return a submission with its pairs by name. The run may have another name elsewhere."""
    content = records.to_object(submission)
    names = [pair.name for pair in submission.pairs]
    pairs = dict(zip(names, content["pairs"], strict=True))
    if submission.options is not None:
        del content["options"]["history"]
    return content | {"pairs": pairs, "run": None, "checksum": None}


def _differences(name: str, submitted: object, from_logs: object) -> Iterator[str]:
    """Yield a line for each value that differs."""
    if isinstance(submitted, dict) and isinstance(from_logs, dict):
        for key in sorted({*submitted, *from_logs}):
            path = f"{name}.{key}" if name else key
            yield from _differences(path, submitted.get(key), from_logs.get(key))
    elif canonical(submitted) != canonical(from_logs):
        yield (
            f"{name} is {_shorten(submitted)} in the submission, {_shorten(from_logs)} in the logs"
        )


def _shorten(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:_MAX_SHOWN_CHARACTERS]}…"
