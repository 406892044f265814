"""A model's opinion of a failed pair, in the words of the taxonomy, beside the computed numbers and never among them.

Asked through LiteLLM (extra `agents`). The answer is checked, asked for again where it does not hold, and kept as
judge.json in the pair's folder together with model, prompt version, cost and the quotes that prove it. A pair that has
been judged by the same model on the same material is not judged again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cooperbench._version import __version__
from cooperbench.agents.llm import (
    DEFAULT_CALL_SECONDS,
    NO_OTHER_RETRIES,
    Caller,
    check_model,
    load_litellm,
    usage_of,
    warm_up,
)
from cooperbench.errors import AgentFailure, InfraError, Interrupted
from cooperbench.models import Usage
from cooperbench.redaction import redact
from cooperbench.report.coordination.llm_judge_prompt import PROMPT_VERSION, check_answer, judge_prompt
from cooperbench.report.formatting import Table
from cooperbench.report.records import is_list, is_object
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.text import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cooperbench.report.coordination.llm_judge_prompt import JudgePrompt
    from cooperbench.report.loading import Run
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.judge/1"
ANSWERS = 3
"""So often a judge is asked for an answer that holds."""
_ANSWER_TOKENS = 2_000
_CONCURRENCY = 4


@dataclass(frozen=True)
class JudgeReport:
    """One model's labels of the failed pairs of a run: opinions, in tables and keys of their own."""

    run: str
    model: str
    judged: int
    """Asked just now."""
    kept: int
    """Judged before, and still the same question."""
    unusable: int
    """Of both: no answer held."""
    errors: tuple[str, ...]
    """Pairs that could not be judged because of an outage, a line each; the same command asks again."""
    usage: Usage
    """Of this call."""
    records: tuple[dict[str, Any], ...]
    """judge.json of each pair that has one."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        labels = [label for record in self.records if is_object(label := record.get("label"))]
        causes = Counter(str(label.get("cause")) for label in labels)
        listed = [one for label in labels if is_list(found := label.get("symptoms")) for one in found]
        symptoms = Counter(str(one.get("symptom")) for one in listed if is_object(one))
        rows = [["cause", name, str(count)] for name, count in causes.most_common()]
        rows += [["symptom", name, str(count)] for name, count in symptoms.most_common()]
        title = (
            f"Why pairs of {self.run} failed, in the opinion of {self.model} ({plural(len(labels), 'pair')})"
        )
        price = f"${self.usage.cost:.2f}"
        if self.usage.unpriced_calls:
            price += f" and {plural(self.usage.unpriced_calls, 'call')} of unknown price"
        notes = [
            f"{self.judged} judged now for {price}, {self.kept} before; evidence: judge.json beside each pair"
        ]
        if self.unusable:
            notes.append(f"{plural(self.unusable, 'pair')} without a usable answer")
        notes += [f"not judged: {line}" for line in self.errors]
        return Table(title, ("", "label", "pairs"), rows, notes)


def judge_run(run: Run, model: str, tell: Callable[[str], object] = lambda _: None) -> JudgeReport:
    """Have the failed coop pairs labelled; `tell` gets a line for each as it happens.

    What is wrong with model or key is a UserError.
    """
    failed = [pair for pair in run.of("coop") if pair.state == "failed"]
    records = {pair.key: record for pair in failed if (record := read_judgement(pair, model))}
    kept = len(records)
    todo = [pair for pair in failed if pair.key not in records]
    errors: list[str] = []
    usage = Usage()
    stop = threading.Event()
    if todo:
        check_model(model, {})
        warm_up()
        judge = _Judge(model, stop)
        with ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="judge") as pool:
            asked = {pool.submit(judge.judge, pair): pair for pair in todo}
            try:
                for future in as_completed(asked):
                    pair = asked[future]
                    try:
                        record, spent = future.result()
                    except InfraError as error:
                        errors.append(f"{pair.label}: {error}")
                        continue
                    records[pair.key] = record
                    usage += spent
                    label = record["label"]
                    tell(printable(f"judged {pair.label}: {label['cause'] if label else 'no usable answer'}"))
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    ordered = tuple(records[pair.key] for pair in failed if pair.key in records)
    unusable = sum(record.get("label") is None for record in ordered)
    return JudgeReport(run.name, model, len(ordered) - kept, kept, unusable, tuple(errors), usage, ordered)


def read_judgement(pair: PairData, model: str) -> dict[str, Any] | None:
    """judge.json, where it is of this model and of what lies here now."""
    record = read_json(pair.paths.judgement)
    if record is None or record.get("schema") != SCHEMA:
        return None
    return record if (record.get("model"), record.get("key")) == (model, judge_prompt(pair).key) else None


class _Judge:
    """Asks one model; `judge` may be called from several threads."""

    def __init__(self, model: str, stop: threading.Event) -> None:
        self._model = model
        self._stop = stop
        self._litellm = load_litellm()

    def judge(self, pair: PairData) -> tuple[dict[str, Any], Usage]:
        """The record that now is judge.json, and what it cost."""
        case = judge_prompt(pair)
        messages = [{"role": "system", "content": case.system}, {"role": "user", "content": case.text}]
        caller = Caller(self._model, self._check, lambda _: None)
        usage = Usage()
        problems: tuple[str, ...] = ()
        best = None
        answers = 0
        while answers < ANSWERS:
            try:
                answer, spent = self._ask(caller, messages)
            except AgentFailure as failure:
                # The material is too long or too foul for it: an outcome, not an outage.
                problems = (f"{failure.status}: {failure}",)
                break
            answers += 1
            usage += spent
            checked = check_answer(answer, case.sources)
            problems = checked.problems
            best = checked.label or best
            if not problems:
                break
            messages += [
                {"role": "assistant", "content": answer},
                {
                    "role": "user",
                    "content": "That does not hold:\n" + "\n".join(problems) + "\nAnswer again, in whole.",
                },
            ]
        record = self._record(pair, case, answers, usage, problems)
        record["label"] = None if best is None else asdict(best)
        write_json(pair.paths.judgement, record)
        return record, usage

    def _ask(self, caller: Caller, messages: list[dict[str, str]]) -> tuple[str, Usage]:
        started = time.monotonic()
        response = caller.ask(
            lambda: self._litellm.completion(
                model=self._model,
                messages=messages,
                temperature=0,
                max_tokens=_ANSWER_TOKENS,
                drop_params=True,
                timeout=DEFAULT_CALL_SECONDS,
                **NO_OTHER_RETRIES,
            )
        )
        usage = usage_of(response, self._model, time.monotonic() - started)
        return response.choices[0].message.content or "", usage

    def _check(self) -> None:
        if self._stop.is_set():
            raise Interrupted("stopped")

    def _record(
        self, pair: PairData, case: JudgePrompt, answers: int, usage: Usage, problems: Sequence[str]
    ) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self._model,
            "prompt_version": PROMPT_VERSION,
            "key": case.key,
            "repo": pair.key.repo,
            "task_id": pair.key.task_id,
            "features": list(pair.key.features),
            "judged_at": utc_now(),
            "answers": answers,
            "problems": [redact(line) for line in problems],
            "cost": usage.cost,
            "unpriced_calls": usage.unpriced_calls,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "version": __version__,
        }
