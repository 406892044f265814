"""Honest patches of the demo's features: correct implementations, in styles that have been rejected."""
