"""The agent `swe_agent`: the real SWE-agent, in an environment of its own, as a worker.

`adapter` is our side. What is in `inside` runs in SWE-agent's environment, under its Python, without our package;
`send_message_bundle` is a tool bundle in SWE-agent's own format.
"""
