"""Checks of this machine for `cooperbench doctor`, each with the command that fixes a problem."""
