"""Readers of what repositories say about themselves, a module for each language."""
