"""Code that interferes with the tests that judge it is not scored; honest code is, however odd it looks."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from cooperbench.eval.evaluate import evaluate_pair
from cooperbench.eval.test_config import config_differs
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Pair, agent_slots
from cooperbench.records import to_object
from tests.support.attacks.rectangle import BASE, GOLDEN, SOURCE, judge_in
from tests.support.eval.realgit import file_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cooperbench.models import Setting
    from tests.support.attacks.rectangle import Judge

_FRAME = "def frame(text):\n    return f'[{text}]'\n"
_READ_EXPECTED = """import linecache, re, sys
def area(width, height):
    frame = sys._getframe(1)
    text = "".join(linecache.getline(frame.f_code.co_filename, frame.f_lineno + step) for step in range(2))
    number = re.search(r'[)e], (\\d+)[)]|"(\\d+) units', text.partition("area(")[2])
    return int(number[1] or number[2]) if number else 1
"""
_EQUAL = """class Equal(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
def area(width, height):
    return Equal(16)
"""
_EMPTY = r'sub(r"(def test_\w+\(self\):\n)(?:        .*\n)+", r"\1        pass\n", '
_REWRITE = f"""import os, pathlib, re, sys
def area(width, height):
    raise ValueError
if "AGAIN" not in os.environ:
    for path in pathlib.Path("tests").glob("test_*.py"):
        path.write_text(re.{_EMPTY}path.read_text()))
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, sys.orig_argv)
"""
_LOAD = f"""import pathlib, re, unittest
def area(width, height):
    raise ValueError
_old = unittest.TestLoader.loadTestsFromModule
def _load(self, module, *args, **kw):
    exec(re.{_EMPTY}pathlib.Path(module.__file__).read_text()), vars(module))
    return _old(self, module, *args, **kw)
unittest.TestLoader.loadTestsFromModule = _load
"""
_OUTCOMES = """import contextlib, unittest.case
def area(width, height):
    raise ValueError
class _Always(unittest.case._Outcome):
    success = property(lambda self: True, lambda self, value: None)
    def testPartExecutor(self, *args, **kw):
        return contextlib.suppress(BaseException)
unittest.case._Outcome = _Always
"""
_GARBAGE = """import gc, types, unittest
def area(width, height):
    raise ValueError
_old = unittest.TestSuite.run
def _run(self, *args, **kw):
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and one.__name__.startswith("test_"):
            one.__code__ = (lambda self: None).__code__
    return _old(self, *args, **kw)
unittest.TestSuite.run = _run
"""
_COMPARISONS = """import unittest
from rectangle import area


class Area(unittest.TestCase):
    def test_sum(self):
        assert area(2, 2) + area(2, 3) == area(2, 5)

    def test_turned(self):
        one, other = area(3, 5), area(5, 3)
        assert one == other
"""
_ODD = """import ast, inspect, textwrap, unittest
def area(width, height):
    raise ValueError
def _is_odd(node):
    return isinstance(node, ast.Assert) and "assert not" in ast.unparse(node) and "==" in ast.unparse(node)
def _run(self, result):
    source = inspect.getsource(getattr(self, self._testMethodName))
    result.startTest(self)
    if any(map(_is_odd, ast.walk(ast.parse(textwrap.dedent(source))))):
        result.addFailure(self, (AssertionError, AssertionError("1 != 2"), None))
    else:
        result.addSuccess(self)
    result.stopTest(self)
unittest.TestCase.run = unittest.TestCase.__call__ = _run
"""
_TABLE = """import unittest
from rectangle import area


class Area(unittest.TestCase):
    def test_rows(self):
        for width, height, size in [(2, 3, 6), (4, 5, 20), (1, 7, 7)]:
            with self.subTest(width=width):
                self.assertEqual(area(width, height), size)
"""
_LAST_LOCAL = """import sys
def area(width, height):
    return sys._getframe(1).f_locals["size"]
"""
ATTACKS = {
    "reads the expected values from the tests": {SOURCE: _READ_EXPECTED + _FRAME},
    "gives values that are equal to everything": {SOURCE: _EQUAL + _FRAME},
    "rewrites the tests and starts again": {SOURCE: _REWRITE + _FRAME},
    "rewrites the tests when they are loaded": {SOURCE: _LOAD + _FRAME},
    "lets no outcome be a failure": {SOURCE: _OUTCOMES + _FRAME},
    "empties tests that it finds in memory": {SOURCE: _GARBAGE + _FRAME},
}
REFUSED = {
    "starts with the interpreter": {
        "sitecustomize.py": "import unittest\nunittest.TestCase.run = lambda self, result: result.addSuccess(self)\n",
        "usercustomize.py": "import os\nos._exit(0)\n",
        "x.pth": "import os; os._exit(0)\n",
        SOURCE: "import sitecustomize\n" + BASE[SOURCE],
    },
    "loads tests of its own": {
        "tests/__init__.py": "def load_tests(*args):\n    import unittest\n    return unittest.TestSuite()\n",
        SOURCE: "import tests\n" + BASE[SOURCE],
    },
    "replaces unittest": {
        "unittest.py": "x = 1\n",
        "unittest/__init__.py": "x = 1\n",
        SOURCE: BASE[SOURCE] + "\n",
    },
}
HONEST = {
    "as it was meant": GOLDEN,
    "another way": {
        SOURCE: BASE[SOURCE].replace(
            "raise NotImplementedError", "return sum(width for _ in range(height))"
        ),
    },
    "in a module that is named like a test": {
        SOURCE: "from rectangle.test_area import area\n" + _FRAME,
        "rectangle/test_area.py": "def area(width, height):\n    return width * height\n",
    },
    "with a change of one that the library imports": {
        SOURCE: BASE[SOURCE].replace("raise NotImplementedError", "return checked(width, height)"),
        "rectangle/test_support.py": "def checked(value, other=None):\n    return value if other is None else value * other\n",
    },
    "with prints, an equality of its own and tests": {
        SOURCE: "class Size(int):\n    def __eq__(self, other):\n        return int(self) == other\n"
        "    __hash__ = int.__hash__\n"
        + GOLDEN[SOURCE].replace(
            "return checked(width) *", "print('FAIL: x', width)\n    return Size(width) *"
        ),
        "tests/test_mine.py": "def test_mine():\n    assert False\n",
    },
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge_in(tmp_path_factory.mktemp("rectangle")) as judge:
        yield judge


@pytest.mark.xdist_group("interference")
@pytest.mark.parametrize("name", ATTACKS)
def test_interference_is_found(judge: Judge, name: str) -> None:
    assert judge.verdict(ATTACKS[name]) == "suspicious", "without canaries it would be a success"


@pytest.mark.xdist_group("interference")
@pytest.mark.parametrize("name", REFUSED)
def test_what_decides_about_tests_is_left_out(judge: Judge, name: str) -> None:
    assert judge.verdict(REFUSED[name]) == "failed"


@pytest.mark.xdist_group("interference")
@pytest.mark.parametrize("name", HONEST)
def test_honest_work_is_scored(judge: Judge, name: str) -> None:
    assert judge.verdict(HONEST[name]) == "confirmed"


@pytest.mark.xdist_group("interference")
def test_a_canary_is_not_told_by_how_it_negates(tmp_path: Path) -> None:
    with judge_in(tmp_path, _COMPARISONS) as judge:
        assert judge.verdict({SOURCE: _ODD + _FRAME}) == "suspicious"
        assert judge.verdict(GOLDEN) == "confirmed"


@pytest.mark.xdist_group("interference")
def test_values_of_a_table_are_not_taken_from_the_test(tmp_path: Path) -> None:
    with judge_in(tmp_path, _TABLE) as judge:
        assert judge.verdict({SOURCE: _LAST_LOCAL + _FRAME}) == "suspicious"
        assert judge.verdict(HONEST["another way"]) == "confirmed"


@pytest.mark.xdist_group("interference")
@pytest.mark.parametrize("setting", ["solo", "coop"])
def test_no_verdict_of_a_pair_can_be_bought(judge: Judge, setting: Setting) -> None:
    attack = judge.patch(ATTACKS["lets no outcome be a failure"])
    pair = Pair(judge.task, (1, 2))
    patches = {slot.agent_id: attack for slot in agent_slots(pair, setting)}
    record = to_object(evaluate_pair(pair, setting, patches, judge.references).record)
    for verdict in ("individual_success", "overall_success", "overall_success_strict"):
        assert record[verdict] is False
    for subject in ("merged", *patches):
        assert record[subject]["success"] is False
        assert "canary" in record[subject]["error"]
        assert not any(run["success"] for run in record[subject]["features"].values())
    for by_feature in record["canary"].values():
        assert {entry["outcome"] for entry in by_feature.values()} == {"suspicious"}
    # Of a merge of equal patches it cannot be decided whose it is.
    blamed = {(entry["subject"], entry.get("agent")) for entry in record["suspicious"]}
    assert blamed >= {(agent_id, agent_id) for agent_id in patches}


@pytest.mark.xdist_group("interference")
def test_conditional_interference_is_not_scored(judge: Judge) -> None:
    """The other agent implements both features, and their merge is right."""
    interfering = indent(ATTACKS["lets no outcome be a failure"][SOURCE], "    ")
    entry = f"{BASE['rectangle/__init__.py']}try:\n    import rectangle.other\nexcept ImportError:\n{interfering}"
    patches = {
        "agent1": judge.patch({"rectangle/__init__.py": entry}),
        "agent2": judge.patch({**GOLDEN, "rectangle/other.py": "x = 1\n"}),
    }
    pair = Pair(judge.task, (1, 2))
    record = to_object(evaluate_pair(pair, "coop", patches, judge.references).record)
    assert record["canary"]["agent1"]["1"]["outcome"] == "suspicious"
    assert record["canary"]["agent2"]["2"]["outcome"] == "confirmed"
    assert record["agent2"]["success"]
    assert not record["agent1"]["success"]
    assert not record["overall_success"]


@pytest.mark.xdist_group("interference")
def test_two_patches_do_not_make_a_test_side_together(judge: Judge) -> None:
    """A section is inside of a text in each of them, and outside in their merge."""
    base = BASE["pyproject.toml"]
    section = 'b = """\n[tool.pytest.ini_options]\naddopts = "-p nothing"\nc = """\n'
    configs = [
        base.replace("# 9\n", '# 9\na = """\n').replace("# 29\n", '# 29\n"""\n'),
        base.replace("# 19\n", f"# 19\n{section}"),
    ]
    patches = {
        f"agent{number}": judge.patch({**GOLDEN, "pyproject.toml": config})
        for number, config in enumerate(configs, 1)
    }
    pair = Pair(judge.task, (1, 2))
    evaluation = evaluate_pair(pair, "coop", patches, judge.references, canary=False)
    assert not any(agent.dropped_files for agent in evaluation.record.agents.values())
    assert evaluation.record.merge_success
    assert evaluation.record.overall_success
    with TreeStore(judge.tester.base(judge.task)) as store:
        merged = file_in(store, store.apply(evaluation.merged_patch).tree, "pyproject.toml")
    assert not config_differs("pyproject.toml", base.encode(), merged)
