"""How language models are asked, through LiteLLM: for every framework that runs inside the harness.

`library` imports it once and quietly, `keys` says beforehand what cannot work, `calls` asks and tries again, `faults`
says whose fault a failure is, `usage` counts tokens and money. Nothing here knows a framework.
"""
