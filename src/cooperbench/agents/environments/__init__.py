"""Agent frameworks whose dependencies fight with each other and with ours: each in a virtual environment of its own.

`frameworks` is the table of them, `interpreters` finds a Python that fits, `store` makes, lists and removes the
environments under the user's data directory. How a framework is driven is told in its adapter's package, not here.
"""
