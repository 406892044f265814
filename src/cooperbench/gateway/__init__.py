"""The way of all agents to their models: an HTTP server of the harness on loopback, and LiteLLM behind it."""
