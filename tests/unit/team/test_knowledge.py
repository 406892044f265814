"""What agents know about the features of others."""

from __future__ import annotations

from cooperbench.dataset.discovery import demo_dir, discover
from cooperbench.models import agent_slots
from cooperbench.team.knowledge import added_signatures, known_features

PATCH = b"""diff --git a/app/money.py b/app/money.py
--- a/app/money.py
+++ b/app/money.py
@@ -1,3 +1,15 @@ class Money:
 class Money:
-    def add(self, other):
+    def add(
+        self,
+        other: Money, *, limit: int = 3
+    ) -> Money:
         return self
+
+    def _hidden(self) -> None:
+        return None
+
+    def __len__(self) -> int:
+        return 1
+
+def parse(text: str) -> Money:
+    return Money(text)
"""


def test_signatures_are_public_definitions_of_the_patch() -> None:
    assert added_signatures(PATCH) == [
        "app/money.py: Money: def add( self, other: Money, *, limit: int = 3 ) -> Money",
        "app/money.py: Money: def __len__(self) -> int",
        "app/money.py: def parse(text: str) -> Money",
    ]
    assert added_signatures(b"not a patch") == []


def test_each_level_includes_the_one_before() -> None:
    (pair,) = discover(demo_dir(), repo="stencil_task", features=[1, 2]).pairs
    slots = agent_slots(pair, "coop")
    assert known_features(slots, "agent1", "nothing") == []
    (titles,) = known_features(slots, "agent1", "titles")
    assert (titles.agent_id, titles.title, titles.description) == (
        "agent2",
        "a `default` filter",
        "",
    )
    (descriptions,) = known_features(slots, "agent1", "descriptions")
    assert descriptions.description.startswith("# Feature: a `default` filter\n")
    assert descriptions.interfaces == ()
    (interfaces,) = known_features(slots, "agent1", "interfaces")
    assert interfaces.description == descriptions.description
    assert any("def default(value: Any" in line for line in interfaces.interfaces)
