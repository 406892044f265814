"""A trajectory of 100 MB is imported in a worker process; this process hardly grows."""

from __future__ import annotations

import json
import resource
from pathlib import Path

from cooperbench import records
from cooperbench.importing.import_run import import_run
from cooperbench.records.trajectory import Trajectory
from tests.support.importing.public_run import PublicPair, write_config, write_pair

MESSAGES = 1_000
OUTPUT = "0123456789abcdef" * 6_400
MAX_GROWTH_BYTES = 60 * 1024 * 1024


def write_large(path: Path) -> None:
    """Write 1,000 commands with an output of 100 kB each."""
    header = json.loads(path.read_bytes())
    header.pop("messages")
    reply = json.dumps({"role": "assistant", "content": "```bash\ncat big\n```"})
    output = json.dumps({"role": "user", "content": OUTPUT})
    with path.open("w") as file:
        file.write(json.dumps(header)[:-1] + ', "messages": [')
        file.write(", ".join([f"{reply}, {output}"] * MESSAGES))
        file.write("]}")


def test_a_large_trajectory(tmp_path: Path) -> None:
    root = tmp_path / "their-run"
    write_config(root)
    folder = write_pair(root, PublicPair(patches={1: b"x", 2: b"y"}))
    source = folder / "agent1_traj.json"
    write_large(source)
    assert source.stat().st_size > 100_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = import_run(root, tmp_path / "logs")
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert run.record.pairs[0].problems == []
    target = run.root / "coop/tiny_task/7/f1_f2/agent1/trajectory.json"
    assert growth < MAX_GROWTH_BYTES
    trajectory = records.read(target, Trajectory)
    assert trajectory is not None
    assert len([step for step in trajectory.steps if step.number]) == MESSAGES
    assert trajectory.steps[1].observation_characters == len(OUTPUT)
