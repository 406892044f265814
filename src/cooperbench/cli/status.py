"""`cooperbench status`: how a run stands, from what is on disk, and who is at work on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from cooperbench.cli.arguments import add_json_argument, add_logs_argument, print_json, print_line
from cooperbench.errors import UserError
from cooperbench.storage import ExperimentPaths, read_json

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the experiment's name")
    add_json_argument(parser)
    add_logs_argument(parser)


def execute(args: argparse.Namespace) -> int:
    from cooperbench.report.loading import read_pairs
    from cooperbench.report.summary import spent_on_disk

    paths = existing(args)
    pairs = {
        setting: dict(Counter(str(pair.state) for pair in read_pairs(paths, setting)))
        for setting in paths.settings_on_disk()
    }
    jobs = jobs_of(paths)
    holder, spent = paths.holder(), spent_on_disk(paths)
    if args.json:
        print_json({"run_name": args.name, "driver": holder, "pairs": pairs, "jobs": jobs, "spent": spent})
        return 0
    print_line(
        f"{args.name}: {holder or 'nobody'} is at work{'' if holder else '; the same command continues'}"
    )
    for title, counts in (*pairs.items(), ("jobs", jobs)):
        if counts:
            print_line(f"{title}: {', '.join(f'{number} {state}' for state, number in counts.items())}")
    print_line(f"spent: ${spent:.2f}")
    return 0


def existing(args: argparse.Namespace) -> ExperimentPaths:
    from cooperbench.report.loading import run_names

    paths = ExperimentPaths(Path(args.log_dir), args.name)
    if not paths.config.exists():
        known = ", ".join(run_names(paths.logs_dir)) or "none"
        raise UserError(f"no experiment {paths.run_name!r} in {paths.logs_dir}; there are: {known}")
    return paths


def jobs_of(paths: ExperimentPaths) -> dict[str, int]:
    """How many are in which state; of Slurm's it is known, also where no driver is at work."""
    from cooperbench.runner.experiment import jobs_on_record

    jobs = jobs_on_record(paths)
    if (read_json(paths.jobs_record) or {}).get("engine") != "slurm":
        return {"given out": len(jobs)} if jobs else {}
    from cooperbench.runner.executors.slurm_engine import job_states

    states = job_states(paths.run_name, jobs)
    if states is None:
        return {"given out (Slurm does not answer)": len(jobs)}
    return dict(Counter(states.get(job, "ended").lower() for job in jobs))
