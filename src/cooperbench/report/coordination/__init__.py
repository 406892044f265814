"""How agents worked together, computed from what is on disk. No model is needed, except for `llm_judge`.

`measures.coordination` looks at one pair, `measures.coordination_of_run` at a run.
"""
