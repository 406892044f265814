"""mini-swe-agent, the PyPI package, at work in our sandboxes: its own loop, models, prompts and config files.

`adapter` has the two agents (actions as text, actions as tool calls), `framework` imports the package quietly,
`config` makes one configuration of its defaults and the user's file, and `loop` puts our sandbox, colleagues, limits
and accounts under its classes. `loop` and `config` import the package, so they are imported after `framework.load()`.
"""
