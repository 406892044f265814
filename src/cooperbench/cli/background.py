"""Runs in the background: `--detach` starts one, `cooperbench status` and `attach` follow it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cooperbench import records
from cooperbench.cli.arguments import add_json_argument, add_logs_argument, print_line, print_result
from cooperbench.errors import UserError
from cooperbench.records import JsonObject
from cooperbench.records.config import imported_from
from cooperbench.records.jobs import JobsRecord
from cooperbench.records.summary import Summary
from cooperbench.records.trajectory import read_trajectory
from cooperbench.report.loading import read_pairs, run_names
from cooperbench.report.pairs import EVALUATED, PairData
from cooperbench.report.summary import spent_on_disk
from cooperbench.storage import ExperimentPaths
from cooperbench.text import dollars_text, names_for_error, plural

_POLL_SECONDS = 0.2
_LAST_LINES_SECONDS = 1.0
"""How long `attach` waits for more output after the run has released its lock."""
RUNNING = "running"


def detach(paths: ExperimentPaths, argv: Sequence[str]) -> int:
    """Start the same command in the background.

    Returns:
        0 once the background process works on the run, or its exit status if it ended before.
    """
    if holder := paths.holder():
        raise UserError(
            f"experiment {paths.run_name!r} is in use by {holder}; wait for it or end it"
        )
    paths.root.mkdir(parents=True, exist_ok=True)
    arguments = [argument for argument in argv if argument != "--detach"]
    command = [sys.executable, "-m", "cooperbench", *arguments]
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
    name, pid = paths.run_name, process.pid
    print_line(f"{name} is running in the background as process {pid}; `kill {pid}` stops it")
    print_line(
        f"check it with `cooperbench status {name}` or follow it: `cooperbench attach {name}`"
    )
    return 0


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench status`."""
    add_attach_arguments(parser)
    add_json_argument(parser)


class _AgentStatus(NamedTuple):
    """Progress of a running agent, from its journal."""

    agent: str
    steps: int
    cost: float


class _RunningPair(NamedTuple):
    pair: str
    agents: list[_AgentStatus]


def status(args: argparse.Namespace) -> int:
    """Print the state of a run: its process, its pairs by state, its jobs and its cost."""
    paths = _existing_run(args)
    holder = paths.holder()
    states: dict[str, dict[str, int]] = {}
    running: list[_RunningPair] = []
    for setting in paths.settings_on_disk():
        counts: Counter[str] = Counter()
        for pair in read_pairs(paths, setting):
            state = _state(pair, paths, holder)
            counts[state] += 1
            if state == RUNNING:
                running.append(_RunningPair(pair.label, list(_agents_at_work(pair))))
        states[setting] = dict(counts)
    jobs = _count_jobs(paths)
    spent = spent_on_disk(paths)
    imported = imported_from(paths.config)
    content = {
        "run_name": args.name,
        "driver": holder,
        "imported": imported,
        "pairs": states,
        RUNNING: [_running_content(pair) for pair in running],
        "jobs": jobs,
        "spent": spent,
    }
    lines = [f"{args.name}: {_process_text(holder, states, is_imported=imported is not None)}"]
    if imported is not None:
        lines.append(f"imported from {imported}")
    lines += [_counts_line(setting, counts) for setting, counts in states.items() if counts]
    lines += [_running_line(pair) for pair in running]
    if jobs:
        lines.append(_counts_line("jobs", jobs))
    lines.append(f"spent: {dollars_text(spent)}")
    print_result(args, content, lines)
    return 0


def _running_content(pair: _RunningPair) -> JsonObject:
    return {"pair": pair.pair, "agents": [agent._asdict() for agent in pair.agents]}


def _process_text(
    holder: str | None, states: Mapping[str, Mapping[str, int]], *, is_imported: bool
) -> str:
    if holder:
        return f"{holder} is running"
    on_disk = {state for counts in states.values() for state in counts}
    if on_disk and on_disk.issubset((*EVALUATED, "no_reference")):
        return "finished"
    if is_imported:
        return "not running; `cooperbench eval` evaluates its pairs"
    return "not running; rerun the same command to continue"


def _state(pair: PairData, paths: ExperimentPaths, holder: str | None) -> str:
    """Return the state of a pair; `running` if the process that works on the run has started it."""
    if holder is None or pair.state != "missing":
        return pair.state
    try:
        started = pair.paths.folder.stat().st_mtime
        is_running = started >= paths.lock_file.stat().st_mtime
    except OSError:
        return pair.state
    return RUNNING if is_running else pair.state


def _agents_at_work(pair: PairData) -> Iterator[_AgentStatus]:
    for agent_id in pair.agent_ids:
        trajectory = read_trajectory(pair.paths.agent(agent_id))
        if trajectory is not None:
            numbers = [step.number or 0 for step in trajectory.steps]
            yield _AgentStatus(agent_id, max(numbers, default=0), trajectory.cost or 0.0)


def _counts_line(title: str, counts: dict[str, int]) -> str:
    return f"{title}: " + ", ".join(f"{count:,} {state}" for state, count in counts.items())


def _running_line(pair: _RunningPair) -> str:
    agents = [
        f"{agent.agent} {plural(agent.steps, 'step')}, {dollars_text(agent.cost)}"
        for agent in pair.agents
    ]
    return f"  {pair.pair}: {'; '.join(agents) or 'starting its sandboxes'}"


def _existing_run(args: argparse.Namespace) -> ExperimentPaths:
    paths = ExperimentPaths(Path(args.log_dir), args.name)
    if not paths.config.exists():
        names = names_for_error(run_names(paths.logs_dir), args.name)
        raise UserError(f"no experiment {paths.run_name!r} in {paths.logs_dir}; available: {names}")
    return paths


def _count_jobs(paths: ExperimentPaths) -> dict[str, int]:
    """Return the number of jobs by state; Slurm knows it even if no driver is running."""
    from cooperbench.runner.executors.driver import read_jobs

    jobs = read_jobs(paths.jobs_record)
    if not jobs:
        return {}
    jobs_record = records.read(paths.jobs_record, JobsRecord)
    if jobs_record is None or jobs_record.engine != "slurm":
        return {"submitted": len(jobs)}
    from cooperbench.runner.executors.slurm_cluster import job_states

    states = job_states(paths.run_name, jobs)
    if states is None:
        return {"submitted (Slurm does not answer)": len(jobs)}
    return dict(Counter(states.get(job, "ended").lower() for job in jobs))


def add_attach_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cooperbench attach`."""
    parser.add_argument("name", metavar="NAME", help="name of the experiment")
    add_logs_argument(parser)


def attach(args: argparse.Namespace) -> int:
    """Print the output of a background run until it ends. Ctrl-C leaves it running."""
    paths = _existing_run(args)
    if not paths.driver_log.exists():
        raise UserError(
            f"{args.name} was not started with --detach; see `cooperbench status {args.name}`"
        )
    try:
        _follow_log(paths)
    except KeyboardInterrupt:
        print_line(f"{args.name} keeps running: {paths.holder()}")
        return 0
    # A run that was killed has no summary, or only that of an earlier call.
    summary = records.read(paths.summary, Summary)
    if summary is None or summary.errors:
        return 1
    return 1 if any(part.missing for part in summary.settings.values()) else 0


def _follow_log(paths: ExperimentPaths) -> None:
    with paths.driver_log.open(encoding="utf-8", errors="replace") as log:
        last_output = time.monotonic()
        # The last lines appear after the run has released its lock.
        while time.monotonic() < last_output + _LAST_LINES_SECONDS:
            holder = paths.holder()
            text = log.read()
            if holder or text:
                last_output = time.monotonic()
            sys.stdout.write(text)
            sys.stdout.flush()
            time.sleep(_POLL_SECONDS)


COMMANDS = {"status": (add_status_arguments, status), "attach": (add_attach_arguments, attach)}
