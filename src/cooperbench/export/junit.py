"""JUnit XML: a suite is a setting and a test is a pair.

What was not judged is no failure of the agents: our errors and files that cannot be read are errors; what was not run
or judged yet, or cannot be judged, is skipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from cooperbench.report.fields import mapping, number, parse_time, text_or_none
from cooperbench.report.pairs import LOSSES, STATES, suspicious_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cooperbench.models import Setting
    from cooperbench.report.loading import Run
    from cooperbench.report.pairs import PairData

_OUTPUT_CHARACTERS = 4_000
"""Of what one failed test run printed: its end, where the failures are."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("missing", "unevaluated", "no_reference")


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


def _why(run: Mapping[str, Any]) -> str:
    passed, failed = int(number(run, "tests_passed")), int(number(run, "tests_failed"))
    counts = f": {passed} passed, {failed} failed" if passed or failed else ""
    return counts + (f" ({error})" if (error := text_or_none(run, "error")) else "")


def xml_text(text: str) -> str:
    """Without colours, and without characters that XML has no place for, even escaped."""
    return _NO_XML.sub("", _COLOURS.sub("", text))
