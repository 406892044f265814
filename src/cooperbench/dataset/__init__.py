"""Tasks, features and pairs on disk."""
