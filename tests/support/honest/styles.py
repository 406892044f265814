"""Styles of honest code: what it does beside its work, while its tests run.

Each style is the source of a module with a function `notice`, which the library calls all the time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """A module that does something odd, and how the library loads it."""

    source: str
    name: str = "notice"
    """Name of the module."""
    by_name: str = "from .notice import notice"
    """Python: the line with which the library loads it."""
    more: tuple[tuple[str, str], ...] = ()
    """Further new files, in the folder of the library."""


_WRITE = """import sys


def write(text):
    sys.stderr.write(text)
    sys.stderr.flush()


"""
_ONCE = "from functools import cache\n"

PYTHON = {
    "plain": Style("def notice():\n    pass\n"),
    "partial_lines": Style(_WRITE + "def notice():\n    write('working...')\n"),
    "progress": Style(
        _WRITE
        + "def notice():\n    for percent in (0, 50, 100):\n        write(f'\\r{percent:3} %')\n"
    ),
    "status_lines": Style(
        _WRITE + "def notice():\n    write('ERROR\\n')\n    write('FAIL\\n\\n')\n"
    ),
    "colors": Style(
        _WRITE + "def notice():\n    write('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x1b[2K')\n"
    ),
    "stdout": Style(
        "import os\n\n\ndef notice():\n    print('12 %', end='')\n    os.write(1, b'ok [1/2] ')\n"
    ),
    "logging": Style(
        "import logging\n\nlogging.basicConfig(format='%(levelname)s %(name)s: %(message)s')\n\n\n"
        "def notice():\n    logging.getLogger(__name__).error('FAIL')\n"
    ),
    "warnings": Style(
        "import warnings\n\nwarnings.simplefilter('always')\n\n\n"
        "def notice():\n    warnings.warn('this is slow', RuntimeWarning, stacklevel=2)\n"
    ),
    "subprocess": Style(
        f"import subprocess\n{_ONCE}\nSCRIPT = 'printf child; printf ERROR >&2'\n\n\n"
        "@cache\ndef notice():\n    subprocess.run(['sh', '-c', SCRIPT], check=True)\n"
    ),
    "exit": Style(
        f"import atexit\nimport sys\n{_ONCE}\n\n"
        "def main(arguments):\n    sys.exit(len(arguments))\n\n\n"
        "@cache\ndef notice():\n    atexit.register(sys.stderr.write, 'bye')\n"
        "    try:\n        main([])\n    except SystemExit as error:\n        assert not error.code\n",
        more=(("__main__.py", "import sys\n\nfrom .notice import main\n\nmain(sys.argv[1:])\n"),),
    ),
    "fork": Style(
        f"import os\n{_ONCE}\n\n@cache\ndef notice():\n    child = os.fork()\n    if child == 0:\n"
        "        os.write(2, b'child')\n        os._exit(0)\n    os.waitpid(child, 0)\n"
    ),
    "multiprocessing": Style(
        f"import multiprocessing\nimport sys\n{_ONCE}\n\n"
        "def work():\n    sys.stdout.write('child')\n    sys.stderr.write('ERROR\\n50 %')\n\n\n"
        "@cache\ndef notice():\n    process = multiprocessing.get_context('fork').Process(target=work)\n"
        "    process.start()\n    process.join()\n"
    ),
    "much_output": Style("def notice():\n    print('x' * 50_000)\n"),
    "wrapped_streams": Style(
        "import io\nimport sys\n\n"
        "for name in ('stdout', 'stderr'):\n    stream = getattr(sys, name)\n    stream.flush()\n"
        "    wrapper = io.TextIOWrapper(stream.buffer, 'utf-8', line_buffering=True)\n"
        "    setattr(sys, name, wrapper)\n\n\n"
        "def notice():\n    sys.stderr.write('half a line')\n"
    ),
    "test_helper": Style(
        "from .testing import ExampleCase\n\n\ndef notice():\n    assert ExampleCase.message\n",
        more=(
            (
                "testing.py",
                (
                    "import unittest\n\n\nclass ExampleCase(unittest.TestCase):\n"
                    "    message = 'for users of the library'\n\n"
                    "    def assert_example(self, text):\n        self.assertIn('example', text)\n"
                ),
            ),
        ),
    ),
    "other_folder": Style(
        "import os\nimport tempfile\n\n\ndef notice():\n    os.chdir(tempfile.gettempdir())\n"
    ),
    "threads": Style(
        # Not sys.stderr: Python aborts if a daemon thread has its lock at the end.
        f"import os\nimport threading\nimport time\n{_ONCE}\n\n"
        "def tick():\n    while True:\n        os.write(2, b'tick')\n        time.sleep(0.002)\n\n\n"
        "@cache\ndef notice():\n    threading.Thread(target=tick, daemon=True).start()\n"
        "    threading.Thread(target=time.sleep, args=(0.3,)).start()\n"
    ),
    "hooks": Style(
        f"import faulthandler\nimport gc\nimport signal\nimport sys\n{_ONCE}\n\n"
        "@cache\ndef notice():\n    faulthandler.enable()\n    gc.freeze()\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        "    sys.excepthook = lambda kind, error, trace: print(kind, error, file=sys.stderr)\n"
    ),
    "import_module": Style(
        "def notice():\n    pass\n",
        name="test_text",
        by_name='import importlib\n\nnotice = importlib.import_module("{package}.test_text").notice',
    ),
    "plugins": Style(
        "def notice():\n    pass\n",
        name="test_plugin",
        by_name="import importlib\nimport pkgutil\n\n"
        "_MODULES = pkgutil.iter_modules([__file__.rpartition('/')[0]])\n"
        "_PLUGINS = [module.name for module in _MODULES if module.name.endswith('_plugin')]\n"
        "_LOADED = [importlib.import_module(f'{{__package__}}.{{name}}') for name in _PLUGINS]\n"
        "notice = _LOADED[0].notice",
    ),
}
"""By name; for Python."""

_FS = "const { writeSync } = require('node:fs');\n\n"
_EXPORT = "\nmodule.exports = { notice };\n"

JAVASCRIPT = {
    "plain": Style("function notice() {}\n"),
    "partial_lines": Style(
        "function notice() {\n  process.stdout.write('working...');\n"
        "  process.stderr.write('still...');\n}\n"
    ),
    "progress": Style(
        "function notice() {\n  for (const percent of [0, 50, 100]) {\n"
        "    process.stdout.write(`\\r${percent} %`);\n  }\n}\n"
    ),
    "status_lines": Style(
        "function notice() {\n  console.error('ERROR');\n  console.log('FAIL');\n}\n"
    ),
    "colors": Style(
        "function notice() {\n  process.stdout.write('\\x1b[31mred\\x1b[0m\\x1b]0;title\\x07');\n}\n"
    ),
    "descriptors": Style(
        _FS + "function notice() {\n  writeSync(1, '12 % ');\n  writeSync(2, 'ok [1/2] ');\n}\n"
    ),
    "warnings": Style(
        "function notice() {\n  process.emitWarning('this is slow', 'SlowWarning');\n}\n"
    ),
    "exit": Style(
        "let registered = false;\n\nfunction notice() {\n  if (!registered) {\n"
        "    process.on('exit', () => process.stdout.write('bye'));\n"
        "    process.on('SIGTERM', () => process.exit(1));\n"
        "    process.on('uncaughtExceptionMonitor', (error) => console.error(error));\n  }\n"
        "  registered = true;\n}\n",
        more=(
            ("cli.js", "require('./notice');\nprocess.exit(process.argv.length > 2 ? 1 : 0);\n"),
        ),
    ),
    "subprocess": Style(
        "const { execFileSync } = require('node:child_process');\n\nlet done = false;\n\n"
        "function notice() {\n  if (!done) {\n    const script = 'printf child; printf ERROR >&2';\n"
        "    execFileSync('sh', ['-c', script], { stdio: 'inherit' });\n  }\n  done = true;\n}\n"
    ),
    "other_folder": Style(
        "const { tmpdir } = require('node:os');\n\n"
        "function notice() {\n  process.chdir(tmpdir());\n}\n"
    ),
    "much_output": Style("function notice() {\n  console.log('x'.repeat(50000));\n}\n"),
    "timers": Style(
        "let timer;\n\nfunction notice() {\n"
        "  timer ??= setInterval(() => process.stdout.write('tick'), 2).unref();\n}\n"
    ),
    "worker": Style(
        "const { Worker } = require('node:worker_threads');\n\nlet worker;\n\nfunction notice() {\n"
        "  worker ??= new Worker('setInterval(() => {}, 5)', { eval: true });\n  worker.unref();\n}\n"
    ),
    "test_helper": Style(
        "const { test } = require('./testing');\n\nfunction notice() {\n  return typeof test;\n}\n",
        more=(
            (
                "testing.js",
                (
                    "const assert = require('node:assert/strict');\nconst { test } = require('node:test');"
                    "\n\nmodule.exports = { assert, test };\n"
                ),
            ),
        ),
    ),
    "by_name": Style("function notice() {}\n", name="notice.spec"),
}
"""By name; for JavaScript."""


def module_source(style: Style, ending: str) -> str:
    """Return the content of the style's module."""
    if ending == "js":
        return f"'use strict';\n\n{style.source}{_EXPORT}"
    return style.source
