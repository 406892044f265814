"""Was it right: patch hygiene, merge, tests, verdict."""
