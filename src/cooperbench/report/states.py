"""The states of a pair and the verdicts on it: what each is called and means, for all reports.

A state follows from result.json and eval.json. Verdicts are what eval.json says of a pair in the states of `JUDGED`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Setting

State = Literal["passed", "failed", "error", "no_reference", "unevaluated", "missing", "broken"]
Loss = Literal["passed", "capability", "conflict", "integration"]


class Meaning(NamedTuple):
    mark: str
    """One character, for the page."""
    short: str
    """As a label, and after a number: `2 not run yet`."""
    sentence: str


STATES: Mapping[State, Meaning] = {
    "passed": Meaning("✓", "passed", "every patch passes alone, and their merge passes all tests"),
    "failed": Meaning(
        "✗", "failed", "a patch fails its own tests alone, the merge fails tests, or the tests did not decide"
    ),
    "error": Meaning("!", "ended in an error", "a sandbox, a server or a provider failed; not scored"),
    "no_reference": Meaning(
        "∅",
        "no reference",
        "a golden patch does not pass its own tests here, which is the dataset's or the machine's fault; not scored",
    ),
    "unevaluated": Meaning("…", "not evaluated yet", "the agents are done, the tests have not run"),
    "missing": Meaning("·", "not run yet", "there is no result yet"),
    "broken": Meaning(
        "!", "could not be read", "a file of the pair cannot be read or has no verdict; not scored"
    ),
}
LOSSES: Mapping[Loss, Meaning] = {
    "passed": STATES["passed"],
    "capability": Meaning(
        "✗", "failed alone", "a patch fails its own feature's tests, before anything is merged"
    ),
    "conflict": Meaning(
        "⚡", "conflict", "each patch passes alone, git cannot merge them plainly, and the union merge fails"
    ),
    "integration": Meaning(
        "≠",
        "failed together",
        "each patch passes alone and they merge, but the merge fails, or its tests did not decide",
    ),
}
"""How a judged pair ended: `failed` is split by the first thing that went wrong."""
JUDGED: tuple[State, ...] = ("passed", "failed")
"""Those with a verdict: rates are over these."""
NOT_JUDGED: tuple[State, ...] = tuple(state for state in STATES if state not in JUDGED)
ENDED: tuple[State, ...] = (*JUDGED, "no_reference", "unevaluated")
"""The agents came to an end: what they did and cost is on record."""


class Verdicts(NamedTuple):
    """What the tests said of one pair; None where it does not apply or an older record does not tell."""

    individual: bool | None
    merge: bool | None
    merged: bool | None
    overall: bool
    strict: bool | None


VERDICTS: Mapping[str, str] = {
    "individual": "every patch passes its own tests alone",
    "merge": "the patches merge in plain git",
    "merged": "the merge passes all tests",
    "overall": "both: alone and merged",
    "strict": "overall, and without a textual conflict",
}
"""The fields of `Verdicts`, and what they mean."""


def applicable_verdicts(setting: Setting) -> tuple[str, ...]:
    """The verdicts of a setting: one agent's patch merges with nothing."""
    return tuple(VERDICTS) if setting != "solo" else ("individual", "overall")


def is_completed(record: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Older records have no status."""
    return record is not None and record.get("status", "completed") == "completed"


def state_of(
    result: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None, *, unreadable: bool = False
) -> State:
    """From what the two files hold; `unreadable`: one of them is there and is no JSON object."""
    if unreadable:
        return "broken"
    if result is None:
        return "missing"
    if not is_completed(result):
        return "error"
    if evaluation is None:
        return "unevaluated"
    if not is_completed(evaluation):
        return "no_reference" if evaluation.get("status") == "no_reference" else "error"
    overall = evaluation.get("overall_success")
    if not isinstance(overall, bool):
        return "broken"
    return "passed" if overall else "failed"


def unsound_text(features: Sequence[int]) -> str:
    """What is wrong with an unsound pair."""
    several = "s" if len(features) > 1 else ""
    return f"the tests of feature{several} {', '.join(map(str, features))} pass without the feature{several}"


def suspicious_text(record: Mapping[str, Any]) -> str:
    """One entry of `suspicious` in eval.json."""
    if record.get("reason") == "canary":
        return f"the tests of feature {record.get('feature')} do not fail where they must"
    place = f"{record.get('path')}:{record.get('line')}"
    return f"{record.get('agent')} reaches for the test process at {place}: {record.get('text')}"
