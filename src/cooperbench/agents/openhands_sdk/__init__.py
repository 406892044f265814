"""The agent `openhands`: the real OpenHands SDK, in an environment of its own, as a worker.

`adapter` is our side. What is in `inside` runs in OpenHands' environment, under its Python, without our package.
"""
