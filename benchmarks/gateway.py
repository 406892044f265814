"""What the gateway costs: `python benchmarks/gateway.py`.

First token: from the request until the first words of a streamed answer, asked from LiteLLM (or, where the provider
speaks the API format itself, from the provider) and through the gateway, in turns (target: at most 20 ms later). Memory:
what the harness has while 50 agents get streamed answers at once (target: below 600 MB). Processor time: what the
harness takes for one streamed answer to a history of 41 messages with 20 tools, without the client's own; other work
on the machine makes it longer, though less so than times on the clock. The provider is a scripted one in a process of
its own, the programs are plain HTTP clients.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from tests.integration.gateway.conftest import KEY, Agents
from tests.integration.gateway.test_server import PATHS, body
from tests.support.modelserver import ModelServer, call, say

from cooperbench.agents import llm

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tests.integration.gateway.conftest import At

ROUNDS = 40
AGENTS = 50
TURNS = TOOLS = 20
ASKED = 30
WAYS = {
    "as it is": {
        "anthropic": "anthropic/claude-sonnet-4-5",
        "gemini": "gemini/gemini-2.5-flash",
        "chat": "openai/m",
    },
    "translated": dict.fromkeys(("responses", "anthropic", "gemini"), "openai/m"),
    "translated and asked by LiteLLM": dict.fromkeys(PATHS, "openai/gpt-4o"),
}
WORDS = "These are the words of a model that has much to say. " * 10


def provide(pipe: Connection) -> None:
    with ModelServer() as server:
        server.script("", lambda _: say(WORDS, pause_seconds=0.01))
        server.script(
            "Look at", lambda _: call("sed -n 1,40p src/module_20.py", "The next one, then.")
        )
        pipe.send(server.anthropic_url)
        pipe.recv()


def until_first_words(client: httpx.Client, url: str, token: str, asked: dict[str, Any]) -> float:
    began = time.perf_counter()
    headers = {
        "x-api-key": token,
        "authorization": f"Bearer {token}",
        "anthropic-version": "2023-06-01",
    }
    with client.stream("POST", url, json=asked, headers=headers) as response:
        for line in response.iter_lines():
            if "These are" in line:
                return time.perf_counter() - began
    raise SystemExit("the answer has no words")


async def by_litellm(base: str, rounds: int) -> list[float]:
    litellm, times = llm.load_litellm(), []
    for _ in range(rounds):
        began = time.perf_counter()
        stream = await litellm.acompletion(
            model="hosted_vllm/m",
            messages=body("chat")["messages"],
            stream=True,
            api_base=base,
            api_key=KEY,
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.perf_counter() - began)
                break
        await asyncio.sleep(0.05)
    return times


def first_token(agents: Agents, provider: str) -> None:
    print("First token (ms)      direct  gateway  difference")
    with httpx.Client(timeout=60) as client, ExitStack() as stack:
        vllm: At = stack.enter_context(agents.open("hosted_vllm/m"))
        claude: At = stack.enter_context(agents.open("anthropic/claude-sonnet-4-5"))
        for name, at, api_format in (
            ("chat, translated", vllm, "chat"),
            ("anthropic, as it is", claude, "anthropic"),
        ):
            direct, through = [], []
            for number in range(ROUNDS + 3):
                if api_format == "chat":
                    one = asyncio.run(by_litellm(f"{provider}/v1", 1))[0]
                else:
                    one = until_first_words(
                        client, f"{provider}/v1/messages", KEY, body("anthropic")
                    )
                other = until_first_words(
                    client, at.url + PATHS[api_format], at.access.token, body(api_format)
                )
                if number >= 3:
                    direct.append(one * 1000)
                    through.append(other * 1000)
            medians = statistics.median(direct), statistics.median(through)
            print(
                f"{name:20}  {medians[0]:6.1f}  {medians[1]:7.1f}  {medians[1] - medians[0]:10.1f}"
            )


def memory(agents: Agents) -> None:
    def ask(at: At) -> int:
        headers = {"authorization": f"Bearer {at.access.token}"}
        with httpx.stream(
            "POST", at.url + PATHS["chat"], json=body("chat"), headers=headers, timeout=120
        ) as answer:
            return len(answer.read())

    before = resident_mb()
    with ExitStack() as stack, ThreadPoolExecutor(AGENTS) as pool:
        opened = [stack.enter_context(agents.open("hosted_vllm/m")) for _ in range(AGENTS)]
        for _ in range(4):
            list(pool.map(ask, opened))
        print(f"\nMemory (MB): {before:.0f} before, {resident_mb():.0f} with {AGENTS} agents")


def turn(api_format: str, number: int) -> list[dict[str, Any]]:
    """A call of a tool and its result."""
    said, given = "I look at the next module.", {"command": f"sed -n 1,40p src/module_{number}.py"}
    about, result = (
        {"id": f"call_{number}", "name": "tool_0"},
        "def function(argument): return argument\n" * 20,
    )
    if api_format == "gemini":
        response = {"functionResponse": {**about, "response": {"output": result}}}
        return [
            {
                "role": "model",
                "parts": [{"text": said}, {"functionCall": {**about, "args": given}}],
            },
            {"role": "user", "parts": [response]},
        ]
    if api_format == "anthropic":
        blocks = [{"type": "text", "text": said}, {"type": "tool_use", **about, "input": given}]
        back = {"type": "tool_result", "tool_use_id": about["id"], "content": result}
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [back]}]
    call_id, arguments = about["id"], json.dumps(given)
    if api_format == "responses":
        return [
            {"type": "function_call", "call_id": call_id, "name": "tool_0", "arguments": arguments},
            {"type": "function_call_output", "call_id": call_id, "output": result},
        ]
    function = {"name": "tool_0", "arguments": arguments}
    asked = {
        "role": "assistant",
        "content": said,
        "tool_calls": [{"id": call_id, "type": "function"}],
    }
    asked["tool_calls"][0]["function"] = function  # type: ignore[index]
    return [asked, {"role": "tool", "tool_call_id": call_id, "content": result}]


def long_body(api_format: str) -> dict[str, Any]:
    whole = body(api_format, "Look at each module, please.")
    place = {"gemini": "contents", "responses": "input"}.get(api_format, "messages")
    if api_format == "responses":
        whole["input"] = [{"role": "user", "content": whole["input"]}]
    whole[place] += [item for number in range(TURNS) for item in turn(api_format, number)]
    text = {"type": "string", "description": "What it is, in one sentence."}
    schema = {"type": "object", "properties": dict.fromkeys(("command", "path", "text"), text)}
    about = {"name": "tool", "description": "Does what one sentence says."}
    tool = {
        "chat": {"type": "function", "function": {**about, "parameters": schema}},
        "responses": {"type": "function", **about, "parameters": schema},
        "anthropic": {**about, "input_schema": schema},
        "gemini": {**about, "parametersJsonSchema": schema},
    }[api_format]
    tools = [
        json.loads(json.dumps(tool).replace('"tool"', f'"tool_{number}"'))
        for number in range(TOOLS)
    ]
    return whole | {"tools": [{"functionDeclarations": tools}] if api_format == "gemini" else tools}


def processor_time(agents: Agents) -> None:
    print("\nProcessor time of one answer (ms)")
    with httpx.Client(timeout=60) as client:
        for way, models in WAYS.items():
            for api_format, model in models.items():
                asked, times = long_body(api_format), []
                with agents.open(model) as at:
                    headers = {"authorization": f"Bearer {at.access.token}"}
                    for number in range(ASKED + 3):
                        began = time.process_time() - time.thread_time()
                        answer = client.post(
                            at.url + PATHS[api_format], json=asked, headers=headers
                        )
                        if answer.status_code != 200:
                            raise SystemExit(answer.text)
                        if number >= 3:
                            times.append(time.process_time() - time.thread_time() - began)
                print(f"{api_format:10}  {way:32}  {statistics.mean(times) * 1000:6.1f}")


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=provide, args=(theirs,))
    process.start()
    provider = ours.recv()
    try:
        with TemporaryDirectory() as folder:
            agents = Agents(Path(folder), None, provider)  # type: ignore[arg-type]  # no sandbox is used
            first_token(agents, provider)
            memory(agents)
            processor_time(agents)
    finally:
        ours.send("end")
        process.join()


if __name__ == "__main__":
    main()
