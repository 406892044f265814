"""What it means: summaries of experiments."""
