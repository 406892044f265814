"""Load results into pandas, and plot what cooperation costs each model.

    pip install 'cooperbench[examples]'
    python examples/deficit_plot.py coop-gpt-4o solo-gpt-4o -o deficit.png

The pairs of all runs are in one table, with one row per pair. The deficit of a model is its success
rate in solo minus the rate in coop, over the pairs that have a verdict in both.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from cooperbench.report.loading import resolve_run
from cooperbench.report.pair_table import pair_rows

PAIR = ["dataset", "repo", "task_id", "features"]


def load_pairs(names: list[str], log_dir: Path) -> pd.DataFrame:
    """Return one row per pair and run; docs/export.md describes the columns."""
    table = pd.DataFrame(pair_rows([resolve_run(name, log_dir) for name in names]))
    table["model"] = table["agent1_model"].fillna(table["agent1_agent"])
    return table


def deficits(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the success rates of each model in solo and coop, and the deficit."""
    verdicts = pairs.dropna(subset=["overall"]).astype({"overall": float})
    by_pair = verdicts.pivot_table(index=["model", *PAIR], columns="setting", values="overall")
    rates = by_pair.dropna(subset=["solo", "coop"]).groupby("model")[["solo", "coop"]].mean()
    rates["deficit"] = rates["solo"] - rates["coop"]
    return rates


def plot(rates: pd.DataFrame, path: Path) -> None:
    """Draw both rates of each model."""
    import matplotlib as mpl

    mpl.use("agg")  # no window
    axes = rates[["solo", "coop"]].plot.bar(ylim=(0, 1), rot=0, ylabel="pairs that pass")
    for position, deficit in enumerate(rates["deficit"]):
        axes.annotate(f"deficit {deficit:+.1%}", (position, 0.96), ha="center")
    axes.figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> int:
    """Print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--log-dir", type=Path, default=Path("logs"))
    parser.add_argument("-o", "--output", type=Path, default=Path("deficit.png"))
    args = parser.parse_args()
    rates = deficits(load_pairs(args.runs, args.log_dir))
    print(rates.round(3).to_string())
    plot(rates, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
