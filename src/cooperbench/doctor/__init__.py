"""What is installed, reachable and configured on this machine, with the command that fixes what is not."""
