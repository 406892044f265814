"""Where code runs, whatever the backend: the contract, the channel into a sandbox, opening and ending sandboxes."""
