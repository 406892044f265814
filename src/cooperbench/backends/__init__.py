"""The backends: where sandboxes run. `registry` finds one by its name."""
