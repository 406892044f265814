"""A model's opinion of a failed pair, as labels of a taxonomy, kept apart from the computed numbers.

The kinds of failed cooperation are those of the CooperBench paper (arXiv 2601.13295) in our words (judge_prompt.txt).
Of an answer only known words are taken, and quotes that really occur where it says.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from cooperbench._version import __version__
from cooperbench.errors import AgentFailure, InfraError
from cooperbench.models import Usage
from cooperbench.report.fields import listed
from cooperbench.report.loading import Run
from cooperbench.report.pairs import PairData
from cooperbench.secrets import redact
from cooperbench.storage import read_json, utc_now, write_json
from cooperbench.text import head_and_tail, printable

SCHEMA = "cooperbench.judge/1"
PROMPT_VERSION = "1"
"""Changes with every word of the prompt."""
PROMPT = files(__package__).joinpath("judge_prompt.txt").read_text(encoding="utf-8").strip()
CAUSES, SYMPTOMS = (
    dict(
        re.findall(r"(?m)^- (\w+): (.+)$", PROMPT.partition(f"{title}:\n")[2].partition("\n\n")[0])
    )
    for title in ("Causes", "Symptoms")
)
ANSWERS = 3
"""So often a judge is asked for an answer that holds."""
_AGAIN = "That does not hold: name a known cause, and symptoms with quotes that occur. Answer again in whole."
_ANSWER_TOKENS = 2_000
_CONCURRENCY = 4
_MESSAGE_CHARACTERS = 4_000
_CONVERSATION_CHARACTERS = 60_000
_PATCH_CHARACTERS = 30_000
_TEST_CHARACTERS = 3_000
_SHORTEST_QUOTE = 8
_MAX_TEXT = 1_000


class Case(NamedTuple):
    """One pair, ready to be judged."""

    text: str
    sources: dict[str, str]
    """The parts in full, by name: what quotes are looked up in."""
    key: str
    """The same for the same question."""


@dataclass(frozen=True)
class JudgeReport:
    """One model's labels of the failed pairs of a run."""

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
    cost: float
    records: tuple[dict[str, Any], ...]
    """judge.json of each pair that has one."""


def judge_run(run: Run, model: str, tell: Callable[[str], object] = lambda _: None) -> JudgeReport:
    """Have the failed coop pairs labelled; `tell` gets a line for each. What is wrong with model or key is a
    UserError."""
    from cooperbench.agents.llm import check_model, warm_up

    failed = [pair for pair in run.pairs if pair.setting != "solo" and pair.state == "failed"]
    records = {pair.key: record for pair in failed if (record := read_judgement(pair, model))}
    todo = [pair for pair in failed if pair.key not in records]
    kept, errors, cost = len(records), [], 0.0
    if todo:
        check_model(model, {})
        warm_up()
    with ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="judge") as pool:
        for pair, answer in zip(
            todo, pool.map(lambda pair: _judge(model, pair), todo), strict=True
        ):
            if isinstance(answer, InfraError):
                errors.append(f"{pair.label}: {answer}")
                continue
            records[pair.key] = answer
            cost += answer["cost"]
            label = answer["label"]
            tell(
                printable(f"judged {pair.label}: {label['cause'] if label else 'no usable answer'}")
            )
    ordered = tuple(records[pair.key] for pair in failed if pair.key in records)
    unusable = sum(record.get("label") is None for record in ordered)
    return JudgeReport(
        run.name, model, len(ordered) - kept, kept, unusable, tuple(errors), cost, ordered
    )


def read_judgement(pair: PairData, model: str) -> dict[str, Any] | None:
    """judge.json, where it is of this model and of what lies here now."""
    record = read_json(pair.paths.judgement) or {}
    asked = (SCHEMA, model, case_of(pair).key) if record else None
    return (
        record if asked == tuple(record.get(name) for name in ("schema", "model", "key")) else None
    )


def _judge(model: str, pair: PairData) -> dict[str, Any] | InfraError:
    """The record that now is judge.json, or the outage that left none."""
    from cooperbench.agents.llm import (
        DEFAULT_CALL_SECONDS,
        NO_OTHER_RETRIES,
        ask,
        load_litellm,
        usage_of,
    )

    litellm = load_litellm()
    case = case_of(pair)
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": case.text}]
    options = {
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
        "drop_params": True,
        **NO_OTHER_RETRIES,
    }
    call = {"model": model, "messages": messages, "timeout": DEFAULT_CALL_SECONDS, **options}
    usage, answers, label, problems = Usage(), 0, None, list[str]()
    while label is None and answers < ANSWERS:
        started = time.monotonic()
        try:
            response = ask(model, lambda: litellm.completion(**call), first_call=answers == 0)
        except AgentFailure as failure:
            # The material is too long or too foul for it: an outcome, not an outage.
            problems = [redact(f"{failure.status}: {failure}")]
            break
        except InfraError as error:
            return error
        answers += 1
        usage += usage_of(response, model, time.monotonic() - started)
        answer = response.choices[0].message.content or ""
        label = label_in(answer, case.sources)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": _AGAIN}]
    record = {
        "schema": SCHEMA,
        "model": model,
        "prompt_version": PROMPT_VERSION,
        "key": case.key,
        **asdict(pair.key),
        "judged_at": utc_now(),
        "answers": answers,
        "problems": problems,
        **usage.to_record(),
        "version": __version__,
        "label": label,
    }
    write_json(pair.paths.judgement, record)
    return record


def case_of(pair: PairData) -> Case:
    """Long parts are cut, and what was cut is said."""
    messages = pair.conversation().messages
    titles = {
        f"message:{one.sequence}": f"from {one.sender} to {one.recipient} " for one in messages
    }
    sources = {f"message:{one.sequence}": one.text for one in messages}
    sources |= {
        f"patch:{one}": (pair.patch(one) or b"").decode("utf-8", "replace")
        for one in pair.agent_ids
    }
    sources |= {f"tests:{name}": text for name, text in pair.test_outputs().items()}
    mark = hashlib.sha256("\0".join(sources.values()).encode("utf-8", "surrogatepass")).hexdigest()[
        :12
    ]
    agents = [
        f"{agent.agent_id}: feature {', '.join(map(str, agent.feature_ids))}, ended as {agent.status}, "
        f"its patch alone {'passes' if agent.success else 'fails'} its own tests"
        for agent in pair.agents
    ]
    runs = pair.merged.features if pair.merged else {}
    failed = [str(feature) for feature, run in runs.items() if not run.success]
    merge = f"Merge: {pair.merge_status}; conflicting files: {', '.join(pair.conflicting_files) or 'none'}"
    fails = f"Features whose tests fail on the merge: {', '.join(failed) or 'none'}"
    parts = ["\n".join([f"Pair: {pair.label}", *agents, merge, fails])]
    left = _CONVERSATION_CHARACTERS
    for name, text in sources.items():
        kind = name.partition(":")[0]
        if kind == "message":
            shown = head_and_tail(text, min(_MESSAGE_CHARACTERS, max(0, left)))
            left -= len(shown)
        else:
            shown = (
                head_and_tail(text, _PATCH_CHARACTERS)
                if kind == "patch"
                else text[-_TEST_CHARACTERS:]
            )
        parts.append(f"=== {name} {titles.get(name, '')}{mark} ===\n{shown}\n=== end {mark} ===")
    # Lone surrogates, from bytes that were no UTF-8, cannot be sent.
    whole = "\n\n".join(parts).encode("utf-8", "replace").decode()
    key = hashlib.sha256("\0".join((PROMPT_VERSION, PROMPT, whole)).encode()).hexdigest()
    return Case(whole, sources, key)


def label_in(answer: str, sources: Mapping[str, str]) -> dict[str, Any] | None:
    """What of an answer holds; None where nothing does. A symptom without a quote that occurs is left out."""
    try:
        # Models like to put words around what they were asked for.
        content = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    symptoms = []
    for item in listed(content, "symptoms", dict)[: len(SYMPTOMS)]:
        quotes = []
        for quote in listed(item, "quotes", dict)[:20]:
            source, text = str(quote.get("source")), str(quote.get("text"))
            start = sources.get(source, "").find(text)
            if start >= 0 and _SHORTEST_QUOTE <= len(text) <= _MAX_TEXT:
                quotes.append({"source": source, "text": text, "start": start})
        name, why = str(item.get("symptom")), str(item.get("why", ""))[:_MAX_TEXT]
        if name in SYMPTOMS and quotes:
            symptoms.append({"symptom": name, "why": why, "quotes": quotes})
    cause, summary = str(content.get("cause")), str(content.get("summary", ""))[:_MAX_TEXT]
    holds = cause == "none" or (cause in CAUSES and symptoms)
    return {"cause": cause, "summary": summary, "symptoms": symptoms} if holds else None
