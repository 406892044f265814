"""Runs in the background: `--detach` starts one, `cooperbench status` and `cooperbench attach` follow it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from cooperbench.cli.arguments import add_json_argument, add_logs_argument, print_line, print_result
from cooperbench.errors import UserError
from cooperbench.report.loading import read_pairs, run_names
from cooperbench.report.summary import spent_on_disk
from cooperbench.storage import ExperimentPaths, read_json
from cooperbench.text import dollars_text

_POLL_SECONDS = 0.2
_LAST_SECONDS = 1.0


def detach(paths: ExperimentPaths, words: list[str]) -> int:
    """Start the same command in the background; 0 when it has begun, its exit code where it ended before."""
    if holder := paths.holder():
        raise UserError(
            f"experiment {paths.run_name!r} is in use by {holder}; wait for it or end it"
        )
    paths.root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cooperbench", *(word for word in words if word != "--detach")]
    with paths.driver_log.open("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            while paths.holder() != f"process {process.pid}" or not paths.config.exists():
                if process.poll() is not None:
                    log.seek(0)
                    sys.stderr.write(log.read())
                    return process.returncode
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    name = paths.run_name
    print_line(
        f"{name} goes on in the background: process {process.pid}; `kill {process.pid}` ends it"
    )
    print_line(
        f"see it with `cooperbench status {name}`, follow it with `cooperbench attach {name}`"
    )
    return 0


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    add_attach_arguments(parser)
    add_json_argument(parser)


def status(args: argparse.Namespace) -> int:
    paths = _existing(args)
    pairs = {
        setting: dict(Counter(str(pair.state) for pair in read_pairs(paths, setting)))
        for setting in paths.settings_on_disk()
    }
    jobs, holder, spent = _jobs_of(paths), paths.holder(), spent_on_disk(paths)
    content = {
        "run_name": args.name,
        "driver": holder,
        "pairs": pairs,
        "jobs": jobs,
        "spent": spent,
    }
    at_work = f"{holder} is at work" if holder else "nobody is at work; the same command continues"
    counted = [
        f"{title}: {', '.join(f'{number} {state}' for state, number in counts.items())}"
        for title, counts in (*pairs.items(), ("jobs", jobs))
        if counts
    ]
    print_result(
        args, content, [f"{args.name}: {at_work}", *counted, f"spent: {dollars_text(spent)}"]
    )
    return 0


def _existing(args: argparse.Namespace) -> ExperimentPaths:
    paths = ExperimentPaths(Path(args.log_dir), args.name)
    if not paths.config.exists():
        known = ", ".join(run_names(paths.logs_dir)) or "none"
        raise UserError(f"no experiment {paths.run_name!r} in {paths.logs_dir}; there are: {known}")
    return paths


def _jobs_of(paths: ExperimentPaths) -> dict[str, int]:
    """How many are in which state; of Slurm's it is known, also where no driver is at work."""
    from cooperbench.runner.executors.driver import jobs_on_record

    jobs = jobs_on_record(paths.jobs_record)
    if (read_json(paths.jobs_record) or {}).get("engine") != "slurm":
        return {"given out": len(jobs)} if jobs else {}
    from cooperbench.runner.executors.slurm_engine import job_states

    states = job_states(paths.run_name, jobs)
    if states is None:
        return {"given out (Slurm does not answer)": len(jobs)}
    return dict(Counter(states.get(job, "ended").lower() for job in jobs))


def add_attach_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the experiment's name")
    add_logs_argument(parser)


def attach(args: argparse.Namespace) -> int:
    """Show what it has printed and prints, until it ends. Ctrl-C leaves it at work."""
    paths = _existing(args)
    if not paths.driver_log.exists():
        raise UserError(
            f"{args.name} was not started with --detach; see `cooperbench status {args.name}`"
        )
    with paths.driver_log.open(encoding="utf-8", errors="replace") as log:
        last_sign = time.monotonic()
        try:
            # Its last lines come after it has let go of the experiment.
            while time.monotonic() < last_sign + _LAST_SECONDS:
                at_work, text = paths.holder(), log.read()
                if at_work or text:
                    last_sign = time.monotonic()
                sys.stdout.write(text)
                sys.stdout.flush()
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            print_line(f"{args.name} goes on: {paths.holder()}")
            return 0
    # One that was killed has left no summary, or one of a call before.
    summary = read_json(paths.summary) or {"errors": 1, "settings": {}}
    return (
        1
        if summary["errors"] or any(part["missing"] for part in summary["settings"].values())
        else 0
    )


COMMANDS = {"status": (add_status_arguments, status), "attach": (add_attach_arguments, attach)}
