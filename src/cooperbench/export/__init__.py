"""A run's results in the formats of other tools: a function for each format, named in a table.

Such a function, `write(run, target)`, writes files there and returns which, and which pairs it had to leave out. It
reads what is on disk through `report.loading`, so that half-finished and older runs are exported as far as they go.

In JUnit XML a suite is a setting and a test is a pair. What was not judged is no failure of the agents: our errors and
files that cannot be read are errors; what was not run or judged yet, or cannot be judged, is skipped.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

from cooperbench.errors import UserError
from cooperbench.report.fields import mapping, number, parse_time, text_or_none
from cooperbench.report.loading import csv_bytes, pair_rows, parquet_bytes
from cooperbench.report.pairs import LOSSES, STATES, suspicious_text
from cooperbench.storage import write_bytes
from cooperbench.text import names_for_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cooperbench.models import Setting
    from cooperbench.report.loading import Run
    from cooperbench.report.pairs import PairData


class Format(NamedTuple):
    writer: str
    """`module:function`, imported when it is used."""
    meaning: str
    """For the help."""
    file_name: str | None = None
    """Of a format that is one file; None: it is a folder of files."""


FORMATS = {
    "csv": Format("cooperbench.export:write_csv", "a row for each pair", "pairs.csv"),
    "parquet": Format("cooperbench.export:write_parquet", "the same, with types", "pairs.parquet"),
    "junit": Format("cooperbench.export:write_junit", "JUnit XML, pairs as tests, for CI", "junit.xml"),
    "leaderboard": Format(
        "cooperbench.export.submission:write",
        "verdicts with checksums of what they rest on, to hand in",
        "submission.json",
    ),
    "atif": Format(
        "cooperbench.export.atif:write",
        "Agent Trajectory Interchange Format, a document for each pair and each agent",
    ),
}
_OUTPUT_CHARACTERS = 4_000
"""Of what one failed test run printed: its end, where the failures are."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Exported(NamedTuple):
    files: list[Path]
    left_out: list[str]
    """A line for each pair that has nothing to export."""


def default_target(run: Run, format_name: str) -> Path:
    """In the run's own folder."""
    return run.root / "export" / (_format(format_name).file_name or format_name)


def export_run(run: Run, format_name: str, target: Path) -> Exported:
    """Write a run into a file, or into a folder (formats of one file go there under their usual name).

    Nothing to write at all is the user's error.
    """
    chosen = _format(format_name)
    if chosen.file_name is not None and target.is_dir():
        target /= chosen.file_name
    module, _, function = chosen.writer.partition(":")
    write: Callable[[Run, Path], Exported] = getattr(import_module(module), function)
    try:
        done = write(run, target) if run.pairs else Exported([], [])
    except OSError as error:
        raise UserError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    if not done.files:
        reason = done.left_out[0] if done.left_out else "there are no pairs in it"
        raise UserError(f"nothing of run {run.name!r} can be exported: {reason}")
    return done


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"no format {name!r}; there are: {names_for_error(FORMATS, name)}")
    return FORMATS[name]


def write_csv(run: Run, target: Path) -> Exported:
    """The same rows as `cooperbench report --csv`."""
    write_bytes(target, csv_bytes(pair_rows([run])))
    return Exported([target], [])


def write_parquet(run: Run, target: Path) -> Exported:
    write_bytes(target, parquet_bytes(pair_rows([run])))
    return Exported([target], [])


def write_junit(run: Run, target: Path) -> Exported:
    root = ET.Element("testsuites", name=xml_text(run.name))
    root.extend(_suite(run, setting) for setting in run.settings)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    ET.indent(root)
    write_bytes(target, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    return Exported([target], [])


def _suite(run: Run, setting: Setting) -> ET.Element:
    pairs = run.of(setting)
    cases = [_case(run, pair) for pair in pairs]
    suite = ET.Element("testsuite", name=xml_text(f"{run.name}.{setting}"), tests=str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    times = (parse_time((pair.result or {}).get("started_at")) for pair in pairs)
    started = min(filter(None, times), default=None)
    if started is not None:
        # In UTC and without a zone, as the format has it.
        suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
    properties = ET.SubElement(suite, "properties")
    about = {
        "dataset": run.dataset[0],
        "dataset_revision": run.dataset[1],
        "agent": run.agent,
        "model": run.model,
    }
    for name, value in about.items():
        if value:
            ET.SubElement(properties, "property", name=name, value=xml_text(value))
    suite.extend(cases)
    return suite


def _case(run: Run, pair: PairData) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=xml_text(f"{run.name}.{pair.setting}.{pair.key.repo}.task{pair.key.task_id}"),
        name=pair.paths.folder.name,
        time=f"{pair.duration_seconds + number(pair.evaluation, 'duration_seconds'):.3f}",
    )
    reason = xml_text(pair.error or STATES[pair.state].short)
    if pair.state in ("missing", "unevaluated", "no_reference"):
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
    """Each patch alone, the merge, then the ends of what failed test runs printed."""
    outputs, ends = pair.test_outputs(), []
    for subject in pair.agent_ids if pair.setting == "solo" else (*pair.agent_ids, "merged"):
        record = mapping(pair.evaluation, subject)
        whose = f"{subject}'s patch alone"
        if subject == "merged":
            whose = f"the merge ({text_or_none(record, 'strategy')})"
            if pair.merge_status == "conflict":
                yield f"plain git merge: conflict in {', '.join(pair.conflicting_files)}"
        runs = mapping(record, "features")
        for feature in (feature for feature in runs if not mapping(runs, feature).get("success")):
            yield f"{whose} fails the tests of feature {feature}{_why(mapping(runs, feature))}"
            text = outputs.get(f"{subject}-f{feature}", "").strip()
            end = ("[…]" if len(text) > _OUTPUT_CHARACTERS else "") + text[-_OUTPUT_CHARACTERS:]
            ends += [f"\n--- {subject} on the tests of feature {feature} ---\n{end}"] if text else []
    yield from ends


def _why(run: Any) -> str:
    passed, failed = int(number(run, "tests_passed")), int(number(run, "tests_failed"))
    counts = f": {passed} passed, {failed} failed" if passed or failed else ""
    return counts + (f" ({error})" if (error := text_or_none(run, "error")) else "")


def xml_text(text: str) -> str:
    """Without colours, and without characters that XML has no place for, even escaped."""
    return _NO_XML.sub("", _COLOURS.sub("", text))
