"""How agents cooperate: messages, shared git, tools, and the commands for them in the sandbox."""
