"""JUnit XML, as CI systems read it: a suite for each setting, a test for each pair.

A pair that failed is a failure with what failed and the ends of the test outputs. What was not judged is no failure of
the agents: our errors and files that cannot be read are errors; what was not run or judged yet, or cannot be judged
because a golden patch does not pass, is skipped. A pair with unsound tests says so in its output.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from cooperbench.export import Exported
from cooperbench.report.coordination.pair import loss_of
from cooperbench.report.records import mapping, number, parse_time, text_or_none
from cooperbench.report.states import STATES, unsound_text
from cooperbench.storage import write_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from cooperbench.models import Setting
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

_OUTPUT_CHARACTERS = 4_000
"""Of what one failed test run printed: its end, where the failures are."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FAILURES = {
    "capability": "a patch fails its own tests alone",
    "conflict": "the patches conflict",
    "integration": "the patches merge, and the merge fails tests",
}


def write(run: Run, target: Path) -> Exported:
    root = ET.Element("testsuites", name=_xml_text(run.name))
    suites = [_suite(run, setting) for setting in run.settings]
    root.extend(suites)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in suites)))
    root.set("time", _seconds(float(suite.get("time", 0)) for suite in suites))
    ET.indent(root)
    write_bytes(target, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    return Exported([target], [])


def _suite(run: Run, setting: Setting) -> ET.Element:
    pairs = run.of(setting)
    cases = [_case(run, pair) for pair in pairs]
    suite = ET.Element("testsuite", name=_xml_text(f"{run.name}.{setting}"), tests=str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", _seconds(float(case.get("time", 0)) for case in cases))
    started = _first_start(pairs)
    if started is not None:
        suite.set("timestamp", started)
    about = {
        "dataset": run.dataset[0],
        "dataset_revision": run.dataset[1],
        "agent": run.agent,
        "model": run.model,
    }
    properties = ET.SubElement(suite, "properties")
    for name, value in about.items():
        if value or name != "model":  # not every agent asks one
            ET.SubElement(properties, "property", name=name, value=_xml_text(value or "unknown"))
    suite.extend(cases)
    return suite


def _case(run: Run, pair: PairData) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=_xml_text(f"{run.name}.{pair.setting}.{pair.key.repo}.task{pair.key.task_id}"),
        name=pair.paths.folder.name,
        time=_seconds([pair.duration_seconds, number(pair.evaluation, "duration_seconds")]),
    )
    if pair.state in ("missing", "unevaluated", "no_reference"):
        reason = pair.error or STATES[pair.state].short
        ET.SubElement(case, "skipped", message=_xml_text(reason))
    elif pair.state in ("error", "broken"):
        error = ET.SubElement(case, "error", type=pair.state)
        lines = [pair.error or pair.state, *pair.problems]
        error.set("message", _xml_text(lines[0]))
        error.text = _xml_text("\n".join(dict.fromkeys(lines)))
    elif pair.state == "failed":
        loss = loss_of(pair)
        kind = loss.kind if loss else "failed"
        failure = ET.SubElement(case, "failure", type=kind)
        failure.set("message", _FAILURES.get(kind, "failed"))
        failure.text = _xml_text("\n".join(_what_failed(pair)))
    if pair.unsound:
        ET.SubElement(case, "system-out").text = f"unsound: {unsound_text(pair.unsound)}"
    return case


def _what_failed(pair: PairData) -> Iterator[str]:
    """Each patch alone, the merge, then the ends of what failed test runs printed."""
    failed = []
    for agent_id in pair.agent_ids:
        for feature, run in _failed_runs(pair, agent_id):
            yield f"{agent_id}'s patch alone fails the tests of feature {feature}{_why(run)}"
            failed.append((agent_id, feature))
    merged = mapping(pair.evaluation, "merged")
    if pair.setting != "solo":
        if pair.merge_status == "conflict":
            files = merged.get("conflicting_files")
            names = [str(one) for one in files] if isinstance(files, list) else []
            yield f"plain git merge: conflict in {', '.join(names) or 'files that are not on record'}"
        how = text_or_none(merged, "strategy") or "unknown"
        for feature, run in _failed_runs(pair, "merged"):
            yield f"the merge ({how}) fails the tests of feature {feature}{_why(run)}"
            failed.append(("merged", feature))
    outputs = pair.test_outputs()
    for subject, feature in failed:
        text = outputs.get(f"{subject}-f{feature}", "").strip()
        if text:
            cut = "[…]" if len(text) > _OUTPUT_CHARACTERS else ""
            yield f"\n--- {subject} on the tests of feature {feature} ---\n{cut}{text[-_OUTPUT_CHARACTERS:]}"


def _failed_runs(pair: PairData, subject: str) -> list[tuple[str, Mapping[str, Any]]]:
    runs = mapping(mapping(pair.evaluation, subject), "features")
    return [(name, run) for name, run in runs.items() if isinstance(run, dict) and not run.get("success")]


def _why(run: Mapping[str, Any]) -> str:
    passed, failed = int(number(run, "tests_passed")), int(number(run, "tests_failed"))
    counts = f": {passed} passed, {failed} failed" if passed or failed else ""
    return counts + (f" ({error})" if (error := text_or_none(run, "error")) else "")


def _first_start(pairs: Sequence[PairData]) -> str | None:
    """In UTC and without a zone, as the format has it."""
    times = (parse_time((pair.result or {}).get("started_at")) for pair in pairs)
    first = min(filter(None, times), default=None)
    return first.strftime("%Y-%m-%dT%H:%M:%S") if first else None


def _seconds(values: Iterator[float] | Sequence[float]) -> str:
    return f"{sum(values):.3f}"


def _xml_text(text: str) -> str:
    """Without colours, and without characters that XML has no place for, even escaped."""
    return _NO_XML.sub("", _COLOURS.sub("", text))
