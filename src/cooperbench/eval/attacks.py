"""Patches that implement nothing and try to pass all the same, for any dataset: `cooperbench validate --attacks`.

Each is put into a file that the feature's golden patch touches, since the hidden tests are likely to load that one. An
attack that is scored as a success shows what a dataset's tests let through.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.eval.trees import TreeStore
    from cooperbench.models import Feature


class Attack(NamedTuple):
    name: str
    suffixes: tuple[str, ...]
    """Of files that it can be put into."""
    code: str
    """Put at the end of the file; for Go a file of its own."""


_LANGUAGES = {
    "python": (".py",),
    "javascript": (".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"),
    "go": (".go",),
    "rust": (".rs",),
}


def attacks() -> Iterator[Attack]:
    """In the files of `attack_code`; the name of each is a line that begins with `##### `."""
    folder = resources.files("cooperbench.eval") / "attack_code"
    for language, suffixes in _LANGUAGES.items():
        for part in (folder / f"{language}.txt").read_text("utf-8").split("##### ")[1:]:
            name, _, code = part.partition("\n")
            yield Attack(name, suffixes, code)


def attack_patches(feature: Feature, store: TreeStore) -> Iterator[tuple[str, bytes]]:
    """Name and patch of each attack that fits a file of the golden patch."""
    golden = store.apply(feature.patch.read_bytes()).tree
    if golden is None:
        return
    changes = store.changes(golden)
    for attack in attacks():
        path = next(
            (path for path, change in changes.items() if change.after and path.endswith(attack.suffixes)),
            None,
        )
        if path is None:
            continue
        change = changes[path]
        before = (store.content(change.before) or b"").decode("utf-8", "surrogateescape")
        if path.endswith(".go"):
            after = (store.content(change.after) or b"").decode("utf-8", "replace")
            package = re.search(r"^package \w+", after, re.MULTILINE)
            path, text = (
                path.removesuffix(".go") + "_entry.go",
                f"{package[0] if package else 'package x'}\n\n{attack.code}",
            )
        else:
            text = f"{before}\n{attack.code}"
        tree = store.edited(store.base.tree, {path: text.encode("utf-8", "surrogateescape")})
        yield f"{attack.name} ({path})", store.patch_of(tree)
