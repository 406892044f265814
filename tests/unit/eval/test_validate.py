"""Attacks that score by chance are told from those that show a weakness."""

from __future__ import annotations

from importlib import resources

from cooperbench.eval.validate import AttackResult


def test_attacks_that_guess_are_known_by_their_names() -> None:
    names = []
    for file in resources.files("cooperbench.eval").joinpath("attack_code").iterdir():
        if file.name.endswith(".txt"):
            lines = file.read_text(encoding="utf-8").splitlines()
            names += [line.removeprefix("##### ") for line in lines if line.startswith("##### ")]
    guesses = {name for name in names if AttackResult(name, scored=True).is_guess}
    assert guesses == {name for name in names if "guess" in name}
    assert 0 < len(guesses) < len(set(names))
