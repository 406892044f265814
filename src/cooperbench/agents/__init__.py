"""Agents: the protocol, the registry, and an adapter for each framework."""
