"""One experiment: plan, run pairs, resume, limits, display."""
