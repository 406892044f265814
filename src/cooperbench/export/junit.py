"""Export to JUnit XML: a suite for each setting, a test for each pair.

A pair that was not evaluated is not a failure of the agents: it is an error, or skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from cooperbench.models import SHARED, Setting
from cooperbench.records.evaluation import FeatureTestRun
from cooperbench.report.loading import Run
from cooperbench.report.mismatch import mismatch_kinds, mismatch_lines, unchecked_lines
from cooperbench.report.pairs import LOSSES, STATES, PairData

_MAX_OUTPUT_CHARACTERS = 4_000
"""Characters kept of a failed test run's output: its end, where the failures are."""
_ANSI_COLORS = re.compile("\x1b\\[[0-9;]*m")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("missing", "unevaluated", "no_reference")
_PATCH_NAMES = {"merged": "the merge", SHARED: "the patch of all agents"}
_TAGS = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}


def junit_bytes(run: Run) -> bytes:
    """Return a run as JUnit XML."""
    root = ET.Element("testsuites", name=xml_text(run.name))
    for setting in run.settings:
        suite = ET.SubElement(root, "testsuite", name=xml_text(f"{run.name}.{setting}"))
        _add_mismatches(suite, run, setting)
        suite.extend(_test_case(run, pair) for pair in run.of(setting))
        _set_counts(suite, ("tests", "failures", "errors", "skipped"))
    _set_counts(root, ("tests", "failures", "errors"))
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_mismatches(suite: ET.Element, run: Run, setting: Setting) -> None:
    """Add what does not fit together in the run as properties of the suite."""
    mismatches = [mismatch for mismatch in run.mismatches if mismatch.setting in (None, setting)]
    properties = [("mismatch", line) for line in mismatch_lines(mismatches)]
    properties += [("not checked", line) for line in unchecked_lines(mismatches)]
    if properties:
        element = ET.SubElement(suite, "properties")
        for name, line in properties:
            ET.SubElement(element, "property", name=name, value=xml_text(line))


def _set_counts(element: ET.Element, names: Sequence[str]) -> None:
    for name in names:
        elements = list(element.iter(_TAGS[name]))
        element.set(name, str(len(elements)))
    seconds = sum(float(case.get("time", 0)) for case in element.iter("testcase"))
    element.set("time", f"{seconds:.3f}")


def _test_case(run: Run, pair: PairData) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=xml_text(f"{run.name}.{pair.setting}.{pair.key.repo}.task{pair.key.task_id}"),
        name=pair.paths.folder.name,
        time=f"{(pair.duration_seconds or 0.0) + pair.test_seconds:.3f}",
    )
    reason = xml_text(pair.error or STATES[pair.state].short)
    if pair.state in _SKIPPED:
        ET.SubElement(case, "skipped", message=reason)
    elif pair.state in ("error", "broken"):
        error = ET.SubElement(case, "error", type=pair.state, message=reason)
        lines = dict.fromkeys([reason, *pair.problems])
        error.text = xml_text("\n".join(lines))
    elif pair.state == "failed" and pair.loss:
        failure = ET.SubElement(case, "failure", type=pair.loss, message=LOSSES[pair.loss].sentence)
        failure.text = xml_text("\n".join(failure_lines(pair)))
    remarks = list(_remarks(run, pair))
    if remarks:
        ET.SubElement(case, "system-out").text = xml_text("\n".join(remarks))
    return case


def _remarks(run: Run, pair: PairData) -> Iterator[str]:
    """Yield what readers of a verdict should know, one line each."""
    if pair.unsound:
        yield f"unsound: {pair.unsound_text}"
    for text in pair.suspicious_texts:
        yield f"suspicious: {text}"
    for text in pair.review_note_texts:
        yield f"review note: {text}"
    for kind in mismatch_kinds(run.mismatches, run.name, pair):
        yield f"mismatch: {kind}"


def failure_lines(pair: PairData) -> Iterator[str]:
    """Yield what failed: each patch, then the merge, with the end of the tests' output."""
    outputs = pair.test_outputs()
    if pair.merge_status == "conflict":
        yield f"plain git merge: conflict in {', '.join(pair.conflicting_files)}"
    for subject in pair.tested_patches:
        if subject == "lead":
            continue  # the lead's patch decides nothing
        totals = pair.evaluation.totals_of(subject) if pair.evaluation else None
        test_runs = totals.features if totals else {}
        for feature_id, test_run in test_runs.items():
            if not test_run.success:
                yield _failure_line(subject, feature_id, test_run)
                output = outputs.get(f"{subject}-f{feature_id}", "").strip()
                yield output[-_MAX_OUTPUT_CHARACTERS:] + "\n"


def _failure_line(subject: str, feature_id: int, test_run: FeatureTestRun) -> str:
    patch = f"{subject}'s patch alone"
    if subject in _PATCH_NAMES:
        patch = _PATCH_NAMES[subject]
    counts = f"{test_run.tests_passed} passed, {test_run.tests_failed} failed"
    error = f" ({test_run.error})" if test_run.error else ""
    return f"{patch} fails the tests of feature {feature_id}: {counts}{error}"


def xml_text(text: str) -> str:
    """Return a text without colors and without characters that XML cannot contain."""
    return _NOT_XML.sub("", _ANSI_COLORS.sub("", text))
