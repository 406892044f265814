"""The part of an agent's prompt about the features of its teammates (`--knows`).

Interfaces are the public definitions that a feature's golden patch adds or changes, without their
bodies: the names that other code could use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cooperbench.dataset.feature_titles import title_of
from cooperbench.diff import ChangedFile, parse_diff
from cooperbench.models import AgentSlot, Feature
from cooperbench.patch_symbols import changed_lines, defined_name
from cooperbench.team.channel import KNOWLEDGE, Knowledge

_MAX_SIGNATURE_LINES = 20
_OPENING, _CLOSING = "([", ")]"


@dataclass(frozen=True)
class KnownFeature:
    """The parts of a teammate's feature that an agent knows."""

    agent_id: str
    title: str
    description: str = ""
    """The text of feature.md; empty if only the title is known."""
    interfaces: tuple[str, ...] = ()
    """Lines with files and signatures."""


def known_features(
    slots: Sequence[AgentSlot], agent_id: str, knows: Knowledge
) -> list[KnownFeature]:
    """Return what an agent knows about the features of the others."""
    if knows == "nothing":
        return []
    features: list[KnownFeature] = []
    for slot in slots:
        if slot.agent_id != agent_id:
            features += [_describe(slot.agent_id, feature, knows) for feature in slot.features]
    return features


def _describe(agent_id: str, feature: Feature, knows: Knowledge) -> KnownFeature:
    data = feature.description.read_bytes()
    title = title_of(data) or f"feature {feature.feature_id}"
    level = KNOWLEDGE.index(knows)
    description = ""
    if level >= KNOWLEDGE.index("descriptions"):
        description = data.decode("utf-8", "replace").strip("\n")
    interfaces: tuple[str, ...] = ()
    if level >= KNOWLEDGE.index("interfaces"):
        interfaces = tuple(added_signatures(feature.patch.read_bytes()))
    return KnownFeature(agent_id, title, description, interfaces)


def added_signatures(patch: bytes) -> list[str]:
    """Return the signatures that a patch adds or changes, as `path: class.name: signature`."""
    try:
        files = parse_diff(patch)
    except ValueError:
        return []
    signatures: list[str] = []
    for file in files:
        signatures += _signatures_of_file(file)
    return list(dict.fromkeys(signatures))


def _signatures_of_file(file: ChangedFile) -> Iterator[str]:
    added = [line for line in changed_lines([file]) if line.is_added]
    for index, line in enumerate(added):
        name = defined_name(line.text.strip())
        is_public = not name.startswith("_") or name.startswith("__")
        if name and is_public:
            texts = [later.text for later in added[index : index + _MAX_SIGNATURE_LINES]]
            yield f"{line.path}: {_join_signature(line.symbol, texts)}"


def _join_signature(symbol: str, texts: Sequence[str]) -> str:
    """Return a definition up to the end of its parameters, on one line, with its class."""
    parts: list[str] = []
    depth = 0
    for text in texts:
        parts.append(text.strip())
        depth += sum(text.count(bracket) for bracket in _OPENING)
        depth -= sum(text.count(bracket) for bracket in _CLOSING)
        if depth <= 0:
            break
    signature = " ".join(parts).rstrip("{: ").strip()
    owner = symbol.rpartition(".")[0]
    return f"{owner}: {signature}" if owner else signature
