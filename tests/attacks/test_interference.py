"""Code that interferes with the tests that judge it is not scored; honest code is, however odd it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attacks.rectangle import BASE, GOLDEN, SOURCE, judge_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.attacks.rectangle import Judge

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
        SOURCE: BASE[SOURCE].replace("raise NotImplementedError", "return sum(width for _ in range(height))"),
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
