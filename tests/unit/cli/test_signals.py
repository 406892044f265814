"""Signals at the end of a command: its exit functions run to their end, whatever comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, signal, sys, time

from cooperbench import cli

pending = [getattr(signal, name) for name in sys.argv.pop().split(",")]


def clean_up():
    # A signal that comes while folders are removed.
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    print("cleaned up")


def send_while_ignoring(frame, event, argument):
    ignoring = frame.f_code.co_name == "signal" and frame.f_locals.get("handler") is signal.SIG_IGN
    if event == "call" and ignoring and pending:
        os.kill(os.getpid(), pending.pop())


register = atexit.register
atexit.register = lambda *given: (register(*given), register(clean_up))
sys.setprofile(send_while_ignoring)
sys.exit(cli.main())
"""


@pytest.mark.parametrize("signals", ["SIGQUIT", "SIGHUP", "SIGQUIT,SIGHUP", "SIGTERM,SIGQUIT"])
def test_while_signals_are_ignored(signals: str) -> None:
    argv = [sys.executable, "-c", PROGRAM, "tasks", "--dataset-dir", "demo", signals]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("cleaned up\n")
    assert "Traceback" not in done.stderr
