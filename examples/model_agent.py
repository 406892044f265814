"""An agent with a model in 60 lines: one bash command per reply, and messages in between.

    cooperbench run -n mine -a model_agent:ModelAgent -m gpt-4o --dataset-dir demo --backend local

The gateway calls the model: it has the key, retries, counts tokens and keeps the limits.
"""

from __future__ import annotations

import re
from pathlib import Path

from cooperbench.agents import llm
from cooperbench.agents.base import Agent
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure
from cooperbench.gateway.conversations import Calls
from cooperbench.gateway.server import Gateway

INSTRUCTIONS = """Reply with your thoughts and exactly one command in a block:

```bash
command
```

Commands run in the repository. When the feature is complete, reply with DONE and no command."""
COMMAND = re.compile(r"```bash\n(.*?)\n```", re.DOTALL)
MAX_OUTPUT = 10_000
MAX_BAD_REPLIES = 3


class ModelAgent(Agent):
    """Asks a model for commands until it says DONE."""

    version = "1"

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        """Reject a model without a key before anything starts."""
        llm.check_model(model, {}, base_url)

    def run(self, session: AgentSession) -> None:
        """Run the loop: messages, reply, command, output."""
        conversation = [{"role": "user", "content": f"{session.prompt}\n\n{INSTRUCTIONS}"}]
        bad_replies = 0
        with Gateway.shared().open(session, {}, Calls(session)) as access:
            while bad_replies < MAX_BAD_REPLIES:
                for message in session.incoming():
                    conversation.append({"role": "user", "content": message.shown})
                reply = access.ask({"messages": conversation})["choices"][0]["message"]["content"]
                conversation.append({"role": "assistant", "content": reply})
                command = COMMAND.search(reply)
                if command:
                    bad_replies = 0
                    result = session.execute(command[1], timeout_seconds=120)
                    output = result.stdout_read() + result.stderr_read()
                    answer = f"exit status {result.returncode}\n{output[-MAX_OUTPUT:]}"
                elif "DONE" in reply:
                    return
                else:
                    bad_replies += 1
                    answer = f"There is no command in your reply. {INSTRUCTIONS}"
                conversation.append({"role": "user", "content": answer})
        raise AgentFailure("format_error", f"{bad_replies} replies in a row without a command")
