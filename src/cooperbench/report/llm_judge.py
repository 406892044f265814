"""The LLM judge: a model's opinion of why a pair failed, kept apart from the computed numbers.

The kinds of failed cooperation are those of the CooperBench paper (arXiv 2601.13295), in our words
(judge_prompt.txt). Only known labels are accepted, and only quotes that occur in their source.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import NamedTuple

import msgspec

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.errors import AgentFailure, InfraError
from cooperbench.models import Usage
from cooperbench.records.judgement import FailureLabel, Judgement, Quote, Symptom
from cooperbench.records.usage import agent_usage
from cooperbench.report.loading import Run
from cooperbench.report.pairs import AgentData, PairData, PairKey, SentMessage, merge_text
from cooperbench.secrets import redact
from cooperbench.storage import utc_now
from cooperbench.text import head_and_tail, printable

PROMPT_VERSION = "1"
"""Changes with every word of the prompt."""
PROMPT = files(__package__).joinpath("judge_prompt.txt").read_text(encoding="utf-8").strip()


def _labels_in_prompt(title: str) -> dict[str, str]:
    """Return the labels that a section of the prompt lists, with their meaning."""
    section = PROMPT.partition(f"{title}:\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"(?m)^- (\w+): (.+)$", section))


CAUSES = _labels_in_prompt("Causes")
SYMPTOMS = _labels_in_prompt("Symptoms")
MAX_ANSWERS = 3
"""Number of times that a judge is asked for a usable answer."""
_ASK_AGAIN = (
    "That does not hold: name a known cause, and symptoms with quotes that occur."
    " Answer again in whole."
)
_ANSWER_TOKENS = 2_000
_CONCURRENCY = 4
_MESSAGE_CHARACTERS = 4_000
_CONVERSATION_CHARACTERS = 60_000
_PATCH_CHARACTERS = 30_000
_TEST_CHARACTERS = 3_000
_MIN_QUOTE_CHARACTERS = 8
_MAX_TEXT_CHARACTERS = 1_000
_MAX_QUOTES = 20


class Case(NamedTuple):
    """The material about one pair that the judge is shown."""

    text: str
    sources: dict[str, str]
    """The complete parts by name. Quotes are looked up in them."""
    key: str
    """Checksum of the prompt and the text."""


class JudgeReport(msgspec.Struct, kw_only=True, frozen=True):
    """One model's labels of the failed pairs of a run."""

    run: str
    model: str
    judged: int
    """Number of pairs judged by this call."""
    kept: int
    """Number of pairs with an earlier judgement of the same material."""
    unusable: int
    """Number of judgements without a usable answer."""
    errors: list[str]
    """A line for each pair that could not be judged because of an outage."""
    cost: float
    records: list[Judgement]
    """The judgement of each pair that has one."""


class _AnsweredQuote(msgspec.Struct):
    source: str = ""
    text: str = ""


class _AnsweredSymptom(msgspec.Struct):
    symptom: str = ""
    why: str = ""
    quotes: list[_AnsweredQuote] = []


class _Answer(msgspec.Struct):
    """A model's answer, as the prompt asks for it."""

    cause: str = ""
    summary: str = ""
    symptoms: list[_AnsweredSymptom] = []


def judge_run(
    run: Run, model: str, notify: Callable[[str], object] = lambda _: None
) -> JudgeReport:
    """Have a model label the failed pairs of a run that have no judgement yet.

    Args:
        run: The run.
        model: Name of the judge's model.
        notify: Is called with a line for each judgement.

    Raises:
        UserError: The model or its key cannot be used.
    """
    from cooperbench.agents.llm import check_model, warm_up

    failed = [pair for pair in run.pairs if pair.setting != "solo" and pair.state == "failed"]
    judgements: dict[PairKey, Judgement] = {}
    for pair in failed:
        judgement = read_judgement(pair, model)
        if judgement is not None:
            judgements[pair.key] = judgement
    kept = len(judgements)
    unjudged = [pair for pair in failed if pair.key not in judgements]
    if unjudged:
        check_model(model, {})
        warm_up()
    errors: list[str] = []
    cost = 0.0
    with ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="judge") as pool:
        answers = pool.map(lambda pair: _judge_or_outage(model, pair), unjudged)
        for pair, answer in zip(unjudged, answers, strict=True):
            if isinstance(answer, InfraError):
                errors.append(f"{pair.label}: {answer}")
                continue
            judgements[pair.key] = answer
            cost += answer.cost
            cause = answer.label.cause if answer.label else "no usable answer"
            notify(printable(f"judged {pair.label}: {cause}"))
    ordered = [judgements[pair.key] for pair in failed if pair.key in judgements]
    return JudgeReport(
        run=run.name,
        model=model,
        judged=len(ordered) - kept,
        kept=kept,
        unusable=sum(judgement.label is None for judgement in ordered),
        errors=errors,
        cost=cost,
        records=ordered,
    )


def read_judgement(pair: PairData, model: str) -> Judgement | None:
    """Return judge.json if it is by this model and about the files that are there now."""
    judgement = records.read(pair.paths.judgement, Judgement)
    if judgement is None or judgement.schema != Judgement.SCHEMA or judgement.model != model:
        return None
    return judgement if judgement.key == make_case(pair).key else None


def _judge_or_outage(model: str, pair: PairData) -> Judgement | InfraError:
    try:
        return _judge(model, pair)
    except InfraError as error:
        return error


class _Exchange(NamedTuple):
    """The answers of the judge to one case."""

    label: FailureLabel | None
    """None if no answer was usable."""
    answers: int
    problems: list[str]
    usage: Usage


def _judge(model: str, pair: PairData) -> Judgement:
    """Ask the model about a pair, and write judge.json."""
    case = make_case(pair)
    exchange = _ask_judge(model, case)
    used = agent_usage(exchange.usage, sandbox_seconds=0.0)
    judgement = Judgement(
        schema=Judgement.SCHEMA,
        model=model,
        prompt_version=PROMPT_VERSION,
        key=case.key,
        repo=pair.key.repo,
        task_id=pair.key.task_id,
        features=list(pair.key.features),
        judged_at=utc_now(),
        answers=exchange.answers,
        problems=exchange.problems,
        cost=used.cost,
        model_calls=used.model_calls,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cached_tokens=used.cached_tokens,
        model_seconds=used.model_seconds,
        unpriced_calls=used.unpriced_calls,
        version=__version__,
        label=exchange.label,
    )
    records.write(pair.paths.judgement, judgement)
    return judgement


def _ask_judge(model: str, case: Case) -> _Exchange:
    """Ask the model until an answer is usable, at most `MAX_ANSWERS` times."""
    from cooperbench.agents.llm import ask_for_text

    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": case.text}]
    usage = Usage()
    for number in range(1, MAX_ANSWERS + 1):
        try:
            answer = ask_for_text(model, messages, _ANSWER_TOKENS, first_call=number == 1)
        except AgentFailure as failure:
            # The material is too long or violates a content policy: an outcome, not an outage.
            problem = redact(f"{failure.status}: {failure}")
            return _Exchange(None, number - 1, [problem], usage)
        usage += answer.usage
        label = parse_label(answer.text, case.sources)
        if label is not None:
            return _Exchange(label, number, [], usage)
        messages.append({"role": "assistant", "content": answer.text})
        messages.append({"role": "user", "content": _ASK_AGAIN})
    return _Exchange(None, MAX_ANSWERS, [], usage)


def make_case(pair: PairData) -> Case:
    """Return the material about a pair. Long parts are shortened, with a note."""
    messages = pair.conversation().messages
    sources = _sources(pair, messages)
    titles = {
        f"message:{message.sequence}": f"from {message.sender} to {message.recipient} "
        for message in messages
    }
    content = "\0".join(sources.values()).encode("utf-8", "surrogatepass")
    # Agents cannot guess the mark, so they cannot forge the end of a part.
    mark = hashlib.sha256(content).hexdigest()[:12]
    parts = [_facts(pair)]
    characters_left = _CONVERSATION_CHARACTERS
    for name, text in sources.items():
        if name.startswith("message:"):
            excerpt = head_and_tail(text, min(_MESSAGE_CHARACTERS, max(0, characters_left)))
            characters_left -= len(excerpt)
        elif name.startswith("patch:"):
            excerpt = head_and_tail(text, _PATCH_CHARACTERS)
        else:
            excerpt = text[-_TEST_CHARACTERS:]
        title = titles.get(name, "")
        parts.append(f"=== {name} {title}{mark} ===\n{excerpt}\n=== end {mark} ===")
    # Unpaired surrogates, from bytes that were not UTF-8, cannot be sent.
    text = "\n\n".join(parts).encode("utf-8", "replace").decode()
    key = hashlib.sha256("\0".join((PROMPT_VERSION, PROMPT, text)).encode()).hexdigest()
    return Case(text, sources, key)


def _sources(pair: PairData, messages: tuple[SentMessage, ...]) -> dict[str, str]:
    """Return everything that the judge may quote, by name."""
    sources = {f"message:{message.sequence}": message.text for message in messages}
    for patch_name in pair.patch_names:
        patch = pair.patch(patch_name) or b""
        sources[f"patch:{patch_name}"] = patch.decode("utf-8", "replace")
    for name, output in pair.test_outputs().items():
        sources[f"tests:{name}"] = output
    return sources


def _facts(pair: PairData) -> str:
    """Return what is known about a pair, for the judge."""
    test_runs = pair.merged.features if pair.merged else {}
    failed = [str(feature_id) for feature_id, run in test_runs.items() if not run.success]
    conflicts = ", ".join(pair.conflicting_files) or "none"
    lines = [
        f"Pair: {pair.label}",
        *[_agent_facts(agent) for agent in pair.agents],
        f"Merge: {merge_text(pair.merge_status) or 'none'}; conflicting files: {conflicts}",
        f"Features whose tests fail on the merge: {', '.join(failed) or 'none'}",
    ]
    if pair.shares_workspace:
        lines[-2:] = [
            "All agents worked on one tree, which is one patch: there was no merge",
            f"Features whose tests fail with it: {', '.join(failed) or 'none'}",
        ]
    return "\n".join(lines)


def _agent_facts(agent: AgentData) -> str:
    features = ", ".join(str(feature_id) for feature_id in agent.feature_ids)
    text = f"{agent.agent_id}: feature {features}, ended as {agent.status}"
    if agent.success is None:
        return text
    outcome = "passes" if agent.success else "fails"
    return f"{text}, its patch alone {outcome} its own tests"


def parse_label(answer: str, sources: Mapping[str, str]) -> FailureLabel | None:
    """Return the usable part of an answer: known labels, with quotes that occur in their source.

    Returns:
        None if the answer names no known cause, or no symptom with a quote that occurs.
    """
    try:
        # Models like to write something before and after the JSON object.
        content = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    claimed = records.convert(content, _Answer)
    symptoms = []
    for symptom in claimed.symptoms[: len(SYMPTOMS)]:
        quotes = _occurring_quotes(symptom.quotes[:_MAX_QUOTES], sources)
        if symptom.symptom in SYMPTOMS and quotes:
            why = symptom.why[:_MAX_TEXT_CHARACTERS]
            symptoms.append(Symptom(symptom=symptom.symptom, why=why, quotes=quotes))
    is_usable = claimed.cause == "none" or (claimed.cause in CAUSES and bool(symptoms))
    if not is_usable:
        return None
    summary = claimed.summary[:_MAX_TEXT_CHARACTERS]
    return FailureLabel(cause=claimed.cause, summary=summary, symptoms=symptoms)


def _occurring_quotes(quotes: list[_AnsweredQuote], sources: Mapping[str, str]) -> list[Quote]:
    occurring = []
    for quote in quotes:
        start = sources.get(quote.source, "").find(quote.text)
        has_good_length = _MIN_QUOTE_CHARACTERS <= len(quote.text) <= _MAX_TEXT_CHARACTERS
        if start >= 0 and has_good_length:
            occurring.append(Quote(source=quote.source, text=quote.text, start=start))
    return occurring
