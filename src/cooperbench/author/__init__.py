"""Tasks from a repository of your own: made, described, checked and shared."""
