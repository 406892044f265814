"""What is to be solved: tasks, features and pairs on disk."""
