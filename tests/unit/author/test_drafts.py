from __future__ import annotations

from cooperbench.author.change_text import ChangeText
from cooperbench.author.drafts import Material, describe_material, draft_from_history

GOLDEN = b"""\
diff --git a/shapes/cube.py b/shapes/cube.py
new file mode 100644
--- /dev/null
+++ b/shapes/cube.py
@@ -0,0 +1,3 @@
+def cube(size, scale=1):
+    volume = size ** 3 * scale
+    return volume
"""
TESTS = b"""\
diff --git a/tests/test_cube.py b/tests/test_cube.py
new file mode 100644
--- /dev/null
+++ b/tests/test_cube.py
@@ -0,0 +1,4 @@
+from shapes.cube import cube
+
+def test_cube():
+    assert cube(3, scale=2) == 54
"""


def test_a_draft_names_what_tests_need() -> None:
    draft = draft_from_history(Material(ChangeText("Add cubes", "They have sides."), GOLDEN, TESTS))
    assert draft.problems == []
    assert draft.text.startswith("# Add cubes\n\nThey have sides.\n\n## Interface\n")
    assert "`def cube(size, scale=1)`" in draft.text


def test_code_of_the_golden_patch_in_a_commit_message_is_removed() -> None:
    body = "This is how:\n\n    volume = size ** 3 * scale\n\nThat was all."
    draft = draft_from_history(Material(ChangeText("Add cubes", body), GOLDEN, TESTS))
    assert "size ** 3" not in draft.text
    assert "That was all." in draft.text
    assert draft.problems == []


def test_a_model_reads_history_context_and_patches() -> None:
    text = ChangeText("Add cubes", "They have sides.", ("First part",))
    shown = describe_material(Material(text, GOLDEN, TESTS, "The pull request said more."))
    for part in ("They have sides.", "First part", "said more", "size ** 3", "cube(3, scale=2)"):
        assert part in shown
    assert "tests import `cube`" in shown
