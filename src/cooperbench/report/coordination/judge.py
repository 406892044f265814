"""A model's opinion of a failed pair, in the words of the taxonomy, beside the computed numbers and never among them.

Asked through LiteLLM (extra `agents`). The answer is checked, asked for again where it does not hold, and kept as
judge.json in the pair's folder together with model, prompt version, cost and the quotes that prove it. A pair that has
been judged by the same model on the same material is not judged again.
"""

from __future__ import annotations

import threading
import time
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
from cooperbench.report.coordination.casefile import PROMPT_VERSION, case_file
from cooperbench.report.coordination.labels import check_answer
from cooperbench.storage import read_json, utc_now, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cooperbench.report.coordination.casefile import CaseFile
    from cooperbench.report.records import PairData

SCHEMA = "cooperbench.judge/1"
ANSWERS = 3
"""So often a judge is asked for an answer that holds."""
_ANSWER_TOKENS = 2_000


@dataclass(frozen=True)
class JudgeReport:
    """What came of judging the failed pairs of a run."""

    judged: int
    """Asked just now."""
    kept: int
    """Judged before, and still the same question."""
    unusable: int
    """Of both: no answer held."""
    errors: tuple[str, ...]
    """Pairs that could not be judged through nobody's fault, a line each; the same command asks again."""
    usage: Usage
    """Of this call."""


def judge_pairs(
    pairs: Sequence[PairData],
    model: str,
    *,
    model_kwargs: Mapping[str, Any] | None = None,
    force: bool = False,
    concurrency: int = 4,
    on_judged: Callable[[PairData, dict[str, Any]], None] = lambda *_: None,
) -> JudgeReport:
    """Label the coop pairs among these that failed. What is wrong with model or key is a UserError."""
    failed = [pair for pair in pairs if pair.setting == "coop" and pair.state == "failed"]
    known = (
        {} if force else {pair.paths: record for pair in failed if (record := read_judgement(pair, model))}
    )
    todo = [pair for pair in failed if pair.paths not in known]
    records = list(known.values())
    errors: list[str] = []
    usage = Usage()
    stop = threading.Event()
    if todo:
        check_model(model, model_kwargs or {})
        warm_up()
        judge = _Judge(model, model_kwargs or {}, stop)
        with ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="judge") as pool:
            asked = {pool.submit(judge.judge, pair): pair for pair in todo}
            try:
                for future in as_completed(asked):
                    try:
                        record, spent = future.result()
                    except InfraError as error:
                        errors.append(f"{asked[future].label}: {error}")
                        continue
                    records.append(record)
                    usage += spent
                    on_judged(asked[future], record)
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    unusable = sum(record["label"] is None for record in records)
    return JudgeReport(len(records) - len(known), len(known), unusable, tuple(errors), usage)


def read_judgement(pair: PairData, model: str | None = None) -> dict[str, Any] | None:
    """judge.json, where it is of this model and of what lies here now; without a model, whatever lies there."""
    record = read_json(pair.paths.judgement)
    if record is None or record.get("schema") != SCHEMA:
        return None
    if model is not None and (record.get("model"), record.get("key")) != (model, case_file(pair).key):
        return None
    return record


class _Judge:
    """Asks one model; `judge` may be called from several threads."""

    def __init__(self, model: str, model_kwargs: Mapping[str, Any], stop: threading.Event) -> None:
        self._model = model
        self._kwargs = dict(model_kwargs)
        self._stop = stop
        self._litellm = load_litellm()

    def judge(self, pair: PairData) -> tuple[dict[str, Any], Usage]:
        """The record that now is judge.json, and what it cost."""
        case = case_file(pair)
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
                **{
                    "temperature": 0,
                    "max_tokens": _ANSWER_TOKENS,
                    "drop_params": True,
                    "timeout": DEFAULT_CALL_SECONDS,
                    **NO_OTHER_RETRIES,
                    **self._kwargs,
                },
            )
        )
        usage = usage_of(response, self._model, time.monotonic() - started, self._litellm)
        return response.choices[0].message.content or "", usage

    def _check(self) -> None:
        if self._stop.is_set():
            raise Interrupted("stopped")

    def _record(
        self, pair: PairData, case: CaseFile, answers: int, usage: Usage, problems: Sequence[str]
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
