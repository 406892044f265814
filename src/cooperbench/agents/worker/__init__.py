"""Agents that are programs of their own: a framework in its own environment, or anybody's, in any language.

The program (the worker) runs on the harness's machine and talks to us in JSON lines over its stdin and stdout; the
protocol is described in docs/workers.md. `agent` has the adapter, `dialogue` our side of the protocol, `process` the
program's life, `supervisor` what ends it with everything it started, and `client` the other side for workers that are
written in Python.
"""
