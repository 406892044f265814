"""How agents cooperate: mailbox and the commands in the sandbox."""
