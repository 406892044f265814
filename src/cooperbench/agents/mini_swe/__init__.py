"""The PyPI package mini-swe-agent in our sandboxes: its own loop, models, prompts and config files.

`adapter` has the two agents, `config` makes one configuration of the framework's defaults and the user's file, and
`loop` puts our sandbox, colleagues, limits and accounts under the framework's classes.
"""
