"""The program of `StreamingAgent`: asks until an answer is whole, runs what it says."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "src/cooperbench/agents/worker"))
from client import connect

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def ask(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The tool call of an answer; None where it broke off."""
    request = urllib.request.Request(
        os.environ["LITELLM_PROXY_API_BASE"] + "/chat/completions",
        json.dumps({"model": "any", "stream": True, "messages": messages}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": "Bearer " + os.environ["LITELLM_PROXY_API_KEY"],
        },
    )
    found: dict[str, Any] = {
        "id": "",
        "type": "function",
        "function": {"name": "", "arguments": ""},
    }
    try:
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                data = line.decode().removeprefix("data:").strip()
                if data == "[DONE]":
                    return found
                chunk = json.loads(data) if line.startswith(b"data:") else {}
                for choice in chunk.get("choices", []):
                    for call in choice["delta"].get("tool_calls") or []:
                        found["id"] = call.get("id") or found["id"]
                        for name, text in call["function"].items():
                            found["function"][name] += text or ""
    except (OSError, ValueError):
        pass
    return None


def main() -> None:
    harness = connect()
    messages: list[dict[str, Any]] = [{"role": "user", "content": harness.start["prompt"]}]
    while True:
        messages += [{"role": "user", "content": one["shown"]} for one in harness.incoming()]
        while (call := ask(messages)) is None:
            time.sleep(0.2)
        command = json.loads(call["function"]["arguments"])["command"]
        result = harness.exec(command)
        if SUBMIT in command:
            harness.done()
            return
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": call["id"], "content": result.output or "nothing"}
        )


main()
