"""A run's results in the formats of other tools: tables and JUnit here, others in `submission` and `atif`.

They are read through `report.loading`, so that half-finished runs are exported as far as they go. In JUnit XML a suite
is a setting and a test is a pair. What was not judged is no failure of the agents: our errors and files that cannot be
read are errors; what was not run or judged yet, or cannot be judged, is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from cooperbench.errors import UserError
from cooperbench.models import Setting
from cooperbench.report.fields import mapping, number, parse_time, text_or_none
from cooperbench.report.loading import Run, csv_bytes, pair_rows, parquet_bytes
from cooperbench.report.pairs import LOSSES, STATES, PairData, suspicious_text
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error


class Format(NamedTuple):
    meaning: str
    """For the help."""
    file_name: str | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("a row for each pair", "pairs.csv"),
    "parquet": Format("the same, with types", "pairs.parquet"),
    "junit": Format("JUnit XML, pairs as tests, for CI", "junit.xml"),
    "leaderboard": Format("verdicts with checksums of what they rest on, to hand in", "submission.json"),
    "atif": Format("Agent Trajectory Interchange Format, a document for each agent"),
}

_OUTPUT_CHARACTERS = 4_000
"""Of what one failed test run printed: its end, where the failures are."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("missing", "unevaluated", "no_reference")


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


def default_target(run: Run, format_name: str) -> Path:
    """In the run's own folder."""
    return run.root / "export" / (FORMATS[format_name].file_name or format_name)


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a file, or into a folder (formats of one file go there under their usual name).

    Nothing to write at all is the user's error.
    """
    if format_name not in FORMATS:
        raise UserError(f"no format {format_name!r}; there are: {names_for_error(FORMATS, format_name)}")
    file_name = FORMATS[format_name].file_name
    if file_name is not None and target.is_dir():
        target /= file_name
    try:
        if not run.pairs:
            done = Exported([], ["there are no pairs in it"])
        elif file_name is None:
            from cooperbench.export.atif import write_documents

            done = Exported(*write_documents(run, target))
        else:
            write_bytes(target, _content(run, format_name))
            done = Exported([target], [])
    except OSError as error:
        raise UserError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    if not done.files:
        raise UserError(f"nothing of run {run.name!r} can be exported: {done.left_out[0]}")
    return done


def _content(run: Run, format_name: str) -> bytes:
    """Of a format that is one file. The rows are those of `cooperbench report --csv`."""
    match format_name:
        case "csv":
            return csv_bytes(pair_rows([run]))
        case "parquet":
            return parquet_bytes(pair_rows([run]))
        case "junit":
            return junit_bytes(run)
    from cooperbench.export.submission import submission_bytes

    return submission_bytes(run)


def junit_bytes(run: Run) -> bytes:
    root = ET.Element("testsuites", name=xml_text(run.name))
    root.extend(_suite(run, setting) for setting in run.settings)
    _count(root, ("tests", "failures", "errors"))
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _count(element: ET.Element, names: Sequence[str]) -> None:
    tags = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for name in names:
        element.set(name, str(len(list(element.iter(tags[name])))))
    element.set("time", f"{sum(float(case.get('time', 0)) for case in element.iter('testcase')):.3f}")


def _suite(run: Run, setting: Setting) -> ET.Element:
    pairs = run.of(setting)
    suite = ET.Element("testsuite", name=xml_text(f"{run.name}.{setting}"))
    times = (parse_time((pair.result or {}).get("started_at")) for pair in pairs)
    if started := min(filter(None, times), default=None):
        # In UTC and without a zone, as the format has it.
        suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
    properties = ET.SubElement(suite, "properties")
    names = ("dataset", "dataset_revision", "agent", "model")
    for name, value in zip(names, (*run.dataset, run.agent, run.model), strict=True):
        if value:
            ET.SubElement(properties, "property", name=name, value=xml_text(value))
    suite.extend(_case(run, pair) for pair in pairs)
    _count(suite, ("tests", "failures", "errors", "skipped"))
    return suite


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
    remarks += [f"suspicious: {suspicious_text(one)}" for one in pair.suspicious]
    if remarks:
        ET.SubElement(case, "system-out").text = xml_text("\n".join(remarks))
    return case


def _what_failed(pair: PairData) -> Iterator[str]:
    """Each patch alone, then the merge, with the ends of what failed test runs printed."""
    outputs = pair.test_outputs()
    for subject in pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged"):
        record = mapping(pair.evaluation, subject)
        whose = f"{subject}'s patch alone"
        if subject == "merged":
            whose = f"the merge ({text_or_none(record, 'strategy')})"
            if pair.merge_status == "conflict":
                yield f"plain git merge: conflict in {', '.join(pair.conflicting_files)}"
        runs = mapping(record, "features")
        for feature in (feature for feature in runs if not mapping(runs, feature).get("success")):
            run = mapping(runs, feature)
            counts = f"{number(run, 'tests_passed'):g} passed, {number(run, 'tests_failed'):g} failed"
            error = text_or_none(run, "error")
            yield f"{whose} fails the tests of feature {feature}: {counts}" + (f" ({error})" if error else "")
            text = outputs.get(f"{subject}-f{feature}", "").strip()
            if text:
                yield ("[…]" if len(text) > _OUTPUT_CHARACTERS else "") + text[-_OUTPUT_CHARACTERS:] + "\n"


def xml_text(text: str) -> str:
    """Without colours, and without characters that XML has no place for, even escaped."""
    return _NO_XML.sub("", _COLOURS.sub("", text))
