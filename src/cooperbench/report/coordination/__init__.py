"""How agents worked together, computed from what is on disk. No model is needed, except for `llm_judge`.

`pair.coordination` looks at one pair, `run.coordination_of_run` at a run. Every number is defined in
docs/coordination.md and carries its evidence: message, step, patch line.
"""
