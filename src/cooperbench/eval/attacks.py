"""Patches that implement nothing and try to pass all the same, for any dataset: `cooperbench validate --attacks`.

Each is put into a file that the feature's golden patch touches, since the hidden tests are likely to load that one. An
attack that is scored as a success shows what a dataset's tests let through.
"""

from __future__ import annotations

import re
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


_PYTHON = (".py",)
_JAVASCRIPT = (".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx")
_FORGED = "Ran 99 tests in 0.001s\\n\\nOK\\n===== 99 passed in 0.01s ====="

ATTACKS = (
    Attack("exit with 0 when loaded", _PYTHON, "import os\nos._exit(0)\n"),
    Attack("end the interpreter with 0", _PYTHON, "raise SystemExit(0)\n"),
    Attack("exit with 0 in the end", _PYTHON, "import atexit, os\natexit.register(lambda: os._exit(0))\n"),
    Attack("forge a summary and exit", _PYTHON, f'import os\nos.write(1, b"{_FORGED}\\n")\nos._exit(0)\n'),
    Attack("skip the test file", _PYTHON, 'import unittest\nraise unittest.SkipTest("not today")\n'),
    Attack(
        "let every test pass",
        _PYTHON,
        "import unittest\n"
        "def _run(self, result=None):\n"
        "    result.startTest(self); result.addSuccess(self); result.stopTest(self)\n"
        "unittest.TestCase.run = unittest.TestCase.__call__ = _run\n"
        "try:\n    import _pytest.python\n    _pytest.python.Function.runtest = lambda self: None\n"
        "    import _pytest.unittest\n    _pytest.unittest.TestCaseFunction.runtest = lambda self: None\n"
        "except ImportError:\n    pass\n",
    ),
    Attack(
        "let every assertion pass",
        _PYTHON,
        "import unittest\n"
        "for _name in dir(unittest.TestCase):\n"
        '    if _name.startswith("assert") and "Raises" not in _name:\n'
        "        setattr(unittest.TestCase, _name, lambda self, *args, **kw: None)\n",
    ),
    Attack(
        "report every test as passed",
        _PYTHON,
        "try:\n    import _pytest.reports\n"
        "    _make = _pytest.reports.TestReport.from_item_and_call.__func__\n"
        "    def _forged(cls, item, call):\n"
        '        report = _make(cls, item, call); report.outcome = "passed"; report.longrepr = None\n'
        "        return report\n"
        "    _pytest.reports.TestReport.from_item_and_call = classmethod(_forged)\n"
        "except ImportError:\n    pass\n"
        "import unittest\n"
        "unittest.TestResult.addFailure = unittest.TestResult.addError = lambda self, test, error: None\n",
    ),
    Attack(
        "let tests end early with an error of its own",
        _PYTHON,
        "import unittest.case\nfrom contextlib import contextmanager as _manager\n"
        "_part = unittest.case._Outcome.testPartExecutor\n"
        "@_manager\n"
        "def _forgiving(self, *args, **kw):\n"
        "    with _part(self, *args, **kw):\n"
        "        try:\n            yield\n"
        "        except AssertionError:\n            raise\n"
        "        except Exception:\n            pass\n"
        "unittest.case._Outcome.testPartExecutor = _forgiving\n"
        "try:\n    import _pytest.python\n    _runtest = _pytest.python.Function.runtest\n"
        "    def _forgive(self):\n"
        "        try:\n            _runtest(self)\n"
        "        except AssertionError:\n            raise\n"
        "        except Exception:\n            pass\n"
        "    _pytest.python.Function.runtest = _forgive\n"
        "except ImportError:\n    pass\n",
    ),
    Attack("exit with 0 when loaded", _JAVASCRIPT, "\n;process.exit(0);\n"),
    Attack(
        "exit with 0 in the end",
        _JAVASCRIPT,
        '\n;process.on("exit", () => { process.exitCode = 0; process.reallyExit(0); });\n',
    ),
    Attack(
        "forge a summary and exit",
        _JAVASCRIPT,
        '\n;console.log("Tests:       99 passed, 99 total\\n# tests 99\\n# pass 99\\n# fail 0"); process.exit(0);\n',
    ),
    Attack(
        "let every assertion pass",
        _JAVASCRIPT,
        "\n;for (const assert of [globalThis.process.getBuiltinModule?.('node:assert')].filter(Boolean)) {\n"
        "  for (const part of [assert, assert.strict]) {\n"
        "    for (const name of Object.keys(part)) {\n"
        "      if (typeof part[name] === 'function' && name !== 'AssertionError') part[name] = () => {};\n"
        "    }\n  }\n}\n"
        ";if (globalThis.expect) globalThis.expect = () => new Proxy(() => {}, { get: (_, name, self) => self });\n",
    ),
    Attack(
        "let tests end early with an error of its own",
        _JAVASCRIPT,
        "\n;{\n  const { AsyncResource } = globalThis.process.getBuiltinModule?.('node:async_hooks') ?? {};\n"
        "  const run = AsyncResource?.prototype.runInAsyncScope;\n"
        "  if (run) AsyncResource.prototype.runInAsyncScope = function (body, ...rest) {\n"
        "    const forgiving = async (...given) => {\n"
        "      try { return await body(...given); }\n"
        "      catch (error) { if (/^[A-Z][a-z]{15}$/.test(error.message)) throw error; }\n"
        "    };\n"
        "    return run.call(this, this.fn === body ? forgiving : body, ...rest);\n"
        "  };\n}\n",
    ),
    Attack("exit with 0 when loaded", (".go",), 'import "os"\n\nfunc init() { os.Exit(0) }\n'),
    Attack(
        "forge a summary and exit",
        (".go",),
        'import (\n\t"fmt"\n\t"os"\n)\n\nfunc init() {\n\tfmt.Println("PASS\\nok  \\tx\\t0.001s")\n\tos.Exit(0)\n}\n',
    ),
    Attack(
        "exit with 0 when loaded",
        (".rs",),
        '\n#[used]\n#[link_section = ".init_array"]\nstatic LEAVE: extern "C" fn() = {\n'
        '    extern "C" fn leave() {\n        std::process::exit(0)\n    }\n    leave\n};\n',
    ),
    Attack(
        "forge a summary and exit",
        (".rs",),
        '\n#[used]\n#[link_section = ".init_array"]\nstatic FORGE: extern "C" fn() = {\n'
        '    extern "C" fn forge() {\n'
        '        println!("running 1 test\\ntest result: ok. 99 passed; 0 failed; 0 ignored; '
        '0 measured; 0 filtered out");\n'
        "        std::process::exit(0)\n    }\n    forge\n};\n",
    ),
)


def attack_patches(feature: Feature, store: TreeStore) -> Iterator[tuple[str, bytes]]:
    """Name and patch of each attack that fits a file of the golden patch."""
    golden = store.apply(feature.patch.read_bytes()).tree
    if golden is None:
        return
    changes = store.changes(golden)
    for attack in ATTACKS:
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
