"""Was it right: what of a patch is judged, merge, tests, verdict."""
