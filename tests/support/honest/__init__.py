"""Honest patches of the demo's features, in styles that have been rejected."""
