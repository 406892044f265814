"""Evaluation: which files of a patch count, merges, test runs, references and verdicts."""
