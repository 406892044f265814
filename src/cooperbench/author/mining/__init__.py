"""Finds features in the history of a repository, and groups those that hold on one base commit."""
