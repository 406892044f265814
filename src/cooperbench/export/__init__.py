"""A run's results in the formats of other tools: tables and JUnit here, others in `submission` and `atif`.

Half-finished runs are exported as far as they go. In JUnit XML a suite is a setting and a test is a pair. What was not
judged is no failure of the agents: it is an error or skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from cooperbench.errors import UserError
from cooperbench.export.atif import write_documents
from cooperbench.export.submission import submission_bytes
from cooperbench.report.fields import mapping, number, text_or_none
from cooperbench.report.loading import Run, csv_bytes, pair_rows, parquet_bytes
from cooperbench.report.pairs import LOSSES, STATES, PairData
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error

_OUTPUT_CHARACTERS = 4_000
"""Of what one failed test run printed: its end, where the failures are."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("missing", "unevaluated", "no_reference")


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


def junit_bytes(run: Run) -> bytes:
    root = ET.Element("testsuites", name=xml_text(run.name))
    for setting in run.settings:
        suite = ET.SubElement(root, "testsuite", name=xml_text(f"{run.name}.{setting}"))
        suite.extend(_case(run, pair) for pair in run.of(setting))
        _count(suite, ("tests", "failures", "errors", "skipped"))
    _count(root, ("tests", "failures", "errors"))
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _count(element: ET.Element, names: Sequence[str]) -> None:
    tags = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for name in names:
        element.set(name, str(len(list(element.iter(tags[name])))))
    element.set(
        "time", f"{sum(float(case.get('time', 0)) for case in element.iter('testcase')):.3f}"
    )


def _case(run: Run, pair: PairData) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=xml_text(f"{run.name}.{pair.setting}.{pair.key.repo}.task{pair.key.task_id}"),
        name=pair.paths.folder.name,
        time=f"{pair.duration_seconds + number(pair.evaluation, 'duration_seconds'):.3f}",
    )
    reason = xml_text(pair.error or STATES[pair.state].short)
    if pair.state in _SKIPPED:
        ET.SubElement(case, "skipped", message=reason)
    elif pair.state in ("error", "broken"):
        error = ET.SubElement(case, "error", type=pair.state, message=reason)
        error.text = xml_text("\n".join(dict.fromkeys([reason, *pair.problems])))
    elif pair.state == "failed" and pair.loss:
        failure = ET.SubElement(case, "failure", type=pair.loss, message=LOSSES[pair.loss].sentence)
        failure.text = xml_text("\n".join(_what_failed(pair)))
    remarks = [f"unsound: {pair.unsound_text}"] if pair.unsound else []
    remarks += [f"suspicious: {text}" for text in pair.suspicious_texts]
    if remarks:
        ET.SubElement(case, "system-out").text = xml_text("\n".join(remarks))
    return case


def _what_failed(pair: PairData) -> Iterator[str]:
    """Each patch alone, then the merge, with the ends of what failed test runs printed."""
    outputs = pair.test_outputs()
    if pair.merge_status == "conflict":
        yield f"plain git merge: conflict in {', '.join(pair.conflicting_files)}"
    for subject in pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged"):
        runs = mapping(mapping(pair.evaluation, subject), "features")
        for feature in (feature for feature in runs if not mapping(runs, feature).get("success")):
            run = mapping(runs, feature)
            whose = "the merge" if subject == "merged" else f"{subject}'s patch alone"
            counts = (
                f"{number(run, 'tests_passed'):g} passed, {number(run, 'tests_failed'):g} failed"
            )
            error = text_or_none(run, "error")
            yield f"{whose} fails the tests of feature {feature}: {counts}" + (
                f" ({error})" if error else ""
            )
            yield outputs.get(f"{subject}-f{feature}", "").strip()[-_OUTPUT_CHARACTERS:] + "\n"


def xml_text(text: str) -> str:
    """Without colours, and without characters that XML has no place for, even escaped."""
    return _NO_XML.sub("", _COLOURS.sub("", text))


class Format(NamedTuple):
    meaning: str
    """For the help."""
    target: str
    """Its usual name."""
    content: Callable[[Run], bytes] | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("a row for each pair", "pairs.csv", lambda run: csv_bytes(pair_rows([run]))),
    "parquet": Format(
        "the same, with types", "pairs.parquet", lambda run: parquet_bytes(pair_rows([run]))
    ),
    "junit": Format("JUnit XML, pairs as tests, for CI", "junit.xml", junit_bytes),
    "leaderboard": Format(
        "verdicts with checksums of what they rest on, to hand in",
        "submission.json",
        submission_bytes,
    ),
    "atif": Format("Agent Trajectory Interchange Format, a document for each agent", "atif"),
}


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a file, or into a folder (formats of one file go there under their usual name).

    Nothing to write at all is the user's error.
    """
    if format_name not in FORMATS:
        raise UserError(
            f"no format {format_name!r}; there are: {names_for_error(FORMATS, format_name)}"
        )
    _, usual_name, content = FORMATS[format_name]
    if content is not None and target.is_dir():
        target /= usual_name
    try:
        if not run.pairs:
            done = Exported([], ["there are no pairs in it"])
        elif content is None:
            done = Exported(*write_documents(run, target))
        else:
            write_bytes(target, content(run))
            done = Exported([target], [])
    except OSError as error:
        raise UserError(
            f"{error.filename or target} cannot be written: {error.strerror}"
        ) from error
    if not done.files:
        raise UserError(f"nothing of run {run.name!r} can be exported: {done.left_out[0]}")
    return done
