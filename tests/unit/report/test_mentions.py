"""What messages name, in any language, and who touches it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cooperbench.report.mentions import MAX_NAMES, Mention, find_mentions, find_names
from cooperbench.report.pairs import SentMessage
from cooperbench.report.patches import read_agent_patch

PATHS = {"Makefile": {"Makefile"}, "größe.py": {"src/größe.py"}}
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
OTHER = b"""\
diff --git a/lib/__init__.py b/lib/__init__.py
index 1111111..2222222 100644
--- a/lib/__init__.py
+++ b/lib/__init__.py
@@ -1 +1,2 @@
 import a
+from wallet import getRates
"""


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("I will add limit to parse() in src/parser.py.", ["parse", "src/parser.py"]),
        ("我会修改src/app.py的第10-20行和`part_3`函数。", ["src/app.py", "src/app.py:10-20", "part_3"]),
        ("Ich ändere app.py (Zeilen 3–9), nicht `Money.add`.", ["app.py", "app.py:3-9", "Money.add"]),
        ("Правлю app.py строки 10-20", ["app.py", "app.py:10-20"]),
        ("`src/a.ts` lines 12-30, then b.ts", ["src/a.ts", "src/a.ts:12-30", "b.ts"]),
        ("`c.go:10-20`, a.py#L5-L9, b.py:7", ["c.go", "c.go:10-20", "a.py", "a.py:5-9", "b.py", "b.py:7-7"]),
        ("a.py 1-5, b.py", ["a.py", "a.py:1-5", "b.py"]),
        ("app.py of 2026-03-04", ["app.py"]),
        ("/workspace/repo/a/b.py, ./x.py and `Makefile` and `größe.py`", ["a/b.py", "x.py", "Makefile", "größe.py"]),
        ("Rates::lookup, Money.add and `def parse(text) -> int:`", ["Rates.lookup", "Money.add", "parse"]),
        ("`limit` or getUser or JavaScript", ["limit?", "getUser?", "JavaScript?"]),
        ("file(s), e.g. v1.2 of Node.js at https://example.org/a.py, `self`", []),
        ("```\na.py\n```\n> b.py\n", []),
    ],
)  # fmt: skip
def test_names_are_found_by_their_form(message: str, names: list[str]) -> None:
    """With `?`: what may be something else."""
    shown = []
    for one in find_names(message, PATHS):
        lines = "" if one.lines is None else ":{}-{}".format(*one.lines)
        shown.append(one.name + lines + ("" if one.certain else "?"))
    assert shown == names


def named(*texts: str) -> list[Mention]:
    messages = [
        SentMessage(number, "agent1", "agent2", text, "2026-03-04T10:00:00Z")
        for number, text in enumerate(texts, 1)
    ]
    works = [read_agent_patch("agent1", PATCH), read_agent_patch("agent2", OTHER)]
    return list(find_mentions(messages, works))


@pytest.mark.parametrize(
    ("message", "sender", "other"),
    [
        ("coinage/money.py", True, False),
        ("money.py", True, False),
        ("wallet.py", False, False),
        ("lib/__init__.py", False, True),
        ("money.py:13-14", True, False),
        ("money.py:40-50", False, False),
        ("`Money.split`", True, False),
        ("split()", True, False),
        ("`Wallet.split`", False, False),
        ("`Money`", True, False),
        ("split_evenly()", False, False),
        ("getRates", False, True),
    ],
)
def test_names_are_compared_with_the_patches(message: str, sender: bool, other: bool) -> None:
    mention = named(f"I change {message}.")[-1]
    assert (mention.touched_by_sender, mention.touched_by_other) == (sender, other)


@pytest.mark.parametrize("message", ["__init__.py", "getUser", "`limit`"])
def test_what_cannot_be_known_does_not_count(message: str) -> None:
    assert named(message) == []


def test_evidence_has_message_and_patch_positions() -> None:
    (mention,) = named("Hello.\n - I change `Money.split`", "again Money.split")
    assert (mention.name, mention.messages) == ("Money.split", (1, 2))
    (touch,) = mention.touches
    assert (touch.agent_id, touch.path) == ("agent1", "coinage/money.py")
    assert PATCH.split(b"\n")[touch.patch_line - 1].startswith(b"+    def split")
    (_, lines) = named("money.py:13-14")
    assert PATCH.split(b"\n")[lines.touches[0].patch_line - 1].startswith(b"+    def split")


WORDS = st.sampled_from(
    [
        "change", "a.py", "`x`", "foo()", "and", ",", ":12", "10-20", "#L3", "\n- ", "\n", ".", "`", "```", '"', ">", "Foo.bar", "’",
        "b_c", "a::b", "x/y/z.go", "**", "\x00", "é", "行", "getUser", "__init__.py", "money.py", "split()",
    ]
)  # fmt: skip


@given(st.one_of(st.lists(WORDS, max_size=60).map("".join), st.text(max_size=300)))
@settings(max_examples=300)
@example("change\u2028a.py\r\n- b.py:1-2")
def test_any_text_is_read_and_evidence_is_where_it_says(text: str) -> None:
    for one in find_names(text, PATHS):
        assert one.name.rpartition(".")[2].rpartition("/")[2] in text
    named(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a.", "a/", "`", "`a", "a_", "f(", "a.py, ", ".", " ", "- ", "a::", "a.py", "1-2 a ", "a.py:1-", "aB", "Aa.", "./", "\n- a.py",
        "a.py\n", "```\n", "((((", "\ud800", "1-", "行", "a " * 30 + "\n", "`a.py` (lines 1-2",
    ],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_linear_time(piece: str) -> None:
    """What is quadratic here takes hours, which the time limit of tests ends."""
    message = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    assert len(find_names(message, PATHS)) <= MAX_NAMES
