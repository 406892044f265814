"""Agents that are programs of their own: a framework in its own environment, or anybody's, in any language.

The program (the worker) runs on the harness's machine and talks to us in JSON lines over its stdin and stdout; the
protocol is described in docs/workers.md. `agent` has the adapter, `protocol` our side of the protocol, `process` the
running program, `supervisor` the parent process that ends it with everything it started. `client` (the other side, for
workers in Python) and `model_faults` stand alone: they also run in the environments of frameworks.
"""
