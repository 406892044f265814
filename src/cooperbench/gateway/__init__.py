"""The one way to a model for programs that bring a model client of their own.

One HTTP server of the harness on loopback (`server`). A program inside a sandbox speaks the dialect that it knows
(`dialects`): OpenAI chat completions or responses, Anthropic messages, Gemini's generateContent. LiteLLM translates it
to what the model's provider speaks. Each agent has a token of its own; limits, retries, accounts and the record are
those of its session. `conversations` tells an agent's conversations apart and adds what colleagues send,
`mcp_server` offers messages as tools, `recording` keeps and replays requests and answers.
"""
