"""Who solves it: the adapter protocol, the registry, one module a framework."""
