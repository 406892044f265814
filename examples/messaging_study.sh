#!/usr/bin/env bash
# A study from plan to report: do messages help? It takes a minute and no model: the agents are the demo's scripts.
# For a real study, name your selection of pairs, agent and model in `options`.
set -euo pipefail

script=$(python3 -c 'from cooperbench.dataset.discovery import demo_dir; print(demo_dir() / "agents.yaml")')
options=(-s demo-python -a scripted --agent-config "$script" --dataset-dir demo --backend local)

# 1. The plan: every pair with and without messages. Nothing runs yet.
cooperbench ablate -n messaging --off messages "${options[@]}" --dry-run

# 2. Run it. The same command continues it after Ctrl-C or a kill.
cooperbench ablate -n messaging --off messages "${options[@]}"

# 3. What messages are worth: paired differences with intervals and corrected p values. The page opens offline; the table has a row per pair.
cooperbench report messaging --html messaging.html --csv messaging.csv
