"""What a judge said of a run, for the command line: opinions, in tables and keys of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cooperbench.report.coordination.judge import judge_pairs, read_judgement
from cooperbench.report.formatting import Table
from cooperbench.report.records import is_list, is_object
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.report.coordination.judge import JudgeReport
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData


@dataclass(frozen=True)
class Opinions:
    """One model's labels of one run's failed pairs."""

    run_name: str
    model: str
    report: JudgeReport
    records: tuple[dict[str, Any], ...]
    """judge.json of each pair that has one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run_name,
            "model": self.model,
            **asdict(self.report),
            "records": list(self.records),
        }

    def table(self) -> Table:
        labels = [label for record in self.records if is_object(label := record.get("label"))]
        causes = Counter(str(label.get("cause")) for label in labels)
        listed = [one for label in labels if is_list(found := label.get("symptoms")) for one in found]
        symptoms = Counter(str(one.get("symptom")) for one in listed if is_object(one))
        rows = [["cause", name, str(count)] for name, count in causes.most_common()]
        rows += [["symptom", name, str(count)] for name, count in symptoms.most_common()]
        title = f"Why pairs of {self.run_name} failed, in the opinion of {self.model} ({plural(len(labels), 'pair')})"
        return Table(title, ("", "label", "pairs"), rows, self._notes())

    def _notes(self) -> list[str]:
        report = self.report
        price = f"${report.usage.cost:.2f}"
        if report.usage.unpriced_calls:
            price += f" and {plural(report.usage.unpriced_calls, 'call')} of unknown price"
        notes = [
            f"{report.judged} judged now for {price}, {report.kept} before; evidence: judge.json beside each pair"
        ]
        if report.unusable:
            notes.append(f"{plural(report.unusable, 'pair')} without a usable answer")
        return notes + [f"not judged: {line}" for line in report.errors]


def judge_run(run: Run, model: str, tell: Callable[[str], object]) -> Opinions:
    """Have the failed pairs judged; `tell` gets a line for each as it happens."""

    def judged(pair: PairData, record: dict[str, Any]) -> None:
        label = record["label"]
        tell(printable(f"judged {pair.label}: {label['cause'] if label else 'no usable answer'}"))

    report = judge_pairs(run.pairs, model, on_judged=judged)
    failed = (pair for pair in run.of("coop") if pair.state == "failed")
    records = tuple(record for pair in failed if (record := read_judgement(pair, model)) is not None)
    return Opinions(run.name, model, report, records)
