"""Claims against diffs: broken only where the patch proves it."""

from __future__ import annotations

import pytest

from cooperbench.report.coordination.changes import read_work
from cooperbench.report.coordination.claims import claims_of, distinct
from cooperbench.report.coordination.verdicts import CheckedClaim, check_claims

PATCH = b"""\
diff --git a/coinage/money.py b/coinage/money.py
index 1111111..2222222 100644
--- a/coinage/money.py
+++ b/coinage/money.py
@@ -10,6 +10,9 @@ class Money:
     def add(self, other):
         check(other)
         return Money(self.amount + other.amount)

+    def split(self, parts):
+        return [self.amount // parts] * parts
+
     def __str__(self):
         return self.amount
diff --git a/coinage/__init__.py b/coinage/__init__.py
index 1111111..2222222 100644
--- a/coinage/__init__.py
+++ b/coinage/__init__.py
@@ -1 +1,2 @@
 import a
+import b
"""


def check(*messages: str, patch: bytes | None = PATCH, others: tuple[str, ...] = ()) -> list[CheckedClaim]:
    claims = [claim for number, text in enumerate(messages, 1) for claim in claims_of("agent1", number, text)]
    return check_claims(distinct(claims), read_work("agent1", patch), others)


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("I will change coinage/money.py.", "kept"),
        ("I will change money.py.", "kept"),
        ("I will change wallet.py.", "broken"),
        ("I won't touch money.py.", "broken"),
        ("I won't touch wallet.py.", "kept"),
        ("I have not touched money.py.", "not_verifiable"),
        ("I have not touched wallet.py.", "kept"),
        ("I won't touch __init__.py.", "not_verifiable"),
        ("I won't touch coinage/__init__.py.", "broken"),
        ("I will add `Money.split`.", "kept"),
        ("I will add split_evenly().", "broken"),
        ("I will change `Money.add`.", "not_verifiable"),
        ("I won't touch `Money.add`.", "not_verifiable"),
        ("I won't touch split().", "broken"),
        ("I won't add split().", "broken"),
        # The class is touched only inside of a method.
        ("I won't change `Money`.", "not_verifiable"),
        ("I won't touch `Wallet.split`.", "not_verifiable"),
    ],
)
def test_a_word_is_held_against_the_patch(message: str, verdict: str) -> None:
    (checked,) = check(message)
    assert (checked.verdict, checked.claim.sentence) == (verdict, message)


def test_the_evidence_is_a_line_of_the_patch() -> None:
    (checked,) = check("I won't touch split().")
    assert (checked.patch_agent, checked.patch_path) == ("agent1", "coinage/money.py")
    assert checked.patch_line is not None
    assert PATCH.split(b"\n")[checked.patch_line - 1].startswith(b"+    def split")


def test_a_symbol_is_judged_by_its_file_where_the_sentence_names_one() -> None:
    verdicts = [one.verdict for one in check("I will change total() in coinage/wallet.py.")]
    assert verdicts == ["broken", "broken"]
    assert [one.verdict for one in check("I won't touch total() in coinage/wallet.py.")] == ["kept"]


def test_short_names_that_fit_two_files_prove_nothing() -> None:
    assert [one.verdict for one in check("I won't touch money.py.", others=("other/money.py",))] == [
        "not_verifiable"
    ]


def test_a_word_taken_back_is_not_broken() -> None:
    first, second = check("I will change wallet.py.", "Plans changed: I won't touch wallet.py.")
    assert (first.verdict, second.verdict) == ("withdrawn", "kept")
    assert "message 2" in first.reason


def test_without_a_patch_nothing_is_known_and_an_empty_one_keeps_no_promise() -> None:
    for patch, verdict in ((None, "not_verifiable"), (b"no diff", "not_verifiable"), (b"", "broken")):
        assert [one.verdict for one in check("I will change a.py.", patch=patch)] == [verdict]
    assert [one.verdict for one in check("I won't change a.py.", patch=b"")] == ["kept"]
