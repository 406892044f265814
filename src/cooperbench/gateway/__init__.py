"""The gateway between agents and models: an HTTP server of the harness on loopback."""
