"""The worker of the agent `swe_agent`: SWE-agent's SWEEnv, agent and configs with our sandbox, messages and limits.

Runs in SWE-agent's environment, not in ours: besides SWE-agent it imports the file beside it and those of `worker/`
that stand alone.
"""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import litellm
import yaml
from client import Harness, connect
from litellm.exceptions import ContentPolicyViolationError
from model_faults import Verdict, judge_model_error
from pydantic import ValidationError
from swe_runtime import AgentOver, ColleagueHook, SandboxDeployment

TRAJECTORY = "swe_agent"
"""The folder with what SWE-agent itself writes down, beside trajectory.json."""
_STATUSES = {
    "exit_context": "context_overflow",
    "exit_cost": "cost_limit",
    "exit_format": "format_error",
    "exit_total_execution_time": "time_limit",
    "exit_command_timeout": "time_limit",
    "exit_forfeit": "gave_up",
    "exit_command": "submitted",
}


class BadConfig(Exception):
    """One line for the user."""


class Asked:
    """`litellm.completion` as SWE-agent calls it: checked before, accounted for after."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._ask = litellm.completion
        self.calls = 0
        self.error: Exception | None = None
        """Of the last call, if it failed."""

    def __call__(self, **kwargs: Any) -> Any:
        self._harness.check_limits()
        started = time.monotonic()
        self.error = None
        try:
            # SWE-agent tries again, and then the harness knows of it.
            response = self._ask(**({"max_retries": 0} | kwargs))
        except Exception as error:
            self.error = error
            raise
        self.calls += 1
        self._account(response, str(kwargs["model"]), time.monotonic() - started)
        return response

    def _account(self, response: Any, model: str, seconds: float) -> None:
        try:
            cost = float(litellm.completion_cost(response, model=model))
            unpriced = False
        except Exception:  # LiteLLM says with a bare Exception that it knows no price
            cost, unpriced = 0.0, True
        usage = response.usage
        message = response.choices[0].message
        details = getattr(usage, "prompt_tokens_details", None)
        calls = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or []
        ]
        self._harness.reply(
            message.content or "",
            cost=cost,
            unpriced=unpriced,
            prompt_tokens=usage.prompt_tokens or 0,
            completion_tokens=usage.completion_tokens or 0,
            cached_tokens=getattr(details, "cached_tokens", None) or 0,
            model_seconds=seconds,
            **({"tool_calls": calls} if calls else {}),
        )


def main() -> None:
    harness = connect()
    harness.ended_as = AgentOver
    try:
        harness.finish(work(harness))
    except AgentOver:
        return
    except BadConfig as error:
        harness.failed("user", str(error))


def work(harness: Harness) -> Verdict:
    from sweagent.agent.agents import DefaultAgentConfig, get_agent_from_config
    from sweagent.agent.problem_statement import TextProblemStatement
    from sweagent.environment.repo import PreExistingRepoConfig
    from sweagent.environment.swe_env import SWEEnv
    from sweagent.exceptions import TotalCostLimitExceededError

    asked = Asked(harness)
    litellm.completion = asked
    try:
        config = DefaultAgentConfig(**agent_settings(harness))
        agent = get_agent_from_config(config)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("agent", *first["loc"]))
        raise BadConfig(f"agent config: {place}: {first['msg']}") from None
    except Exception as error:  # e.g. a KeyError for a variable that the help of a tool names
        raise BadConfig(f"agent config: SWE-agent cannot use it: {type(error).__name__}: {error}") from error
    threading.Thread(target=warm_up, args=[str(harness.start["model"])]).start()
    deployment = SandboxDeployment(harness)
    agent.add_hook(ColleagueHook(harness, deployment.runtime))
    # The repository is clean and on its only commit; SWE-agent would fetch from remotes that are not there.
    repo = PreExistingRepoConfig(repo_name=str(harness.start["repo_dir"]).lstrip("/"), reset=False)
    env = SWEEnv(deployment=deployment, repo=repo, post_startup_commands=[])
    folder = Path(harness.start["folder"]) / TRAJECTORY
    folder.mkdir(parents=True, exist_ok=True)
    env.start()
    task = TextProblemStatement(text=harness.start["prompt"], id=str(harness.start["agent_id"]))
    try:
        result = agent.run(env=env, problem_statement=task, output_dir=folder)
    except TotalCostLimitExceededError as error:
        return Verdict("done", "cost_limit", f"SWE-agent: {error}")
    except RuntimeError as error:
        if deployment.runtime.installing:
            return Verdict("failed", "infra", f"a tool bundle cannot be installed in the sandbox: {error}")
        raise
    exit_status, most_calls = str(result.info.get("exit_status")), config.model.per_instance_call_limit
    if "exit_cost" in exit_status and 0 < most_calls < asked.calls:
        return Verdict("done", "step_limit", f"limit of {most_calls} model calls reached (agent config)")
    return judge(exit_status, asked, str(harness.start["model"]))


def warm_up(model: str) -> None:
    """What LiteLLM imports at its first call: a second that passes while tools are put into the sandbox."""
    try:
        provider = litellm.get_llm_provider(model)[1]
    except Exception:  # whatever it is, the first call will say it
        return
    if provider == "openai" or provider in getattr(litellm, "openai_compatible_providers", ()):
        import_module("openai.resources")


def judge(exit_status: str, asked: Asked, model: str) -> Verdict:
    """How it ended; `submitted (exit_cost)` is SWE-agent's way of saying that it handed in for the agent."""
    reason = exit_status.removeprefix("submitted").strip(" ()")
    if not reason:
        return Verdict("done", "submitted", "")
    if isinstance(asked.error, ContentPolicyViolationError):
        # SWE-agent has asked again, and counts refusals among the replies that it cannot read.
        return judge_model_error(asked.error, model, first_call=asked.calls == 0)
    if reason in _STATUSES:
        return Verdict(
            "done", _STATUSES[reason], "" if reason == "exit_command" else f"SWE-agent: {exit_status}"
        )
    if asked.error is not None:
        return judge_model_error(asked.error, model, first_call=asked.calls == 0)
    return Verdict("failed", "infra", f"SWE-agent ended with {exit_status}")


def agent_settings(harness: Harness) -> dict[str, Any]:
    """SWE-agent's config with the user's over it, the model, and a tool for messages where there are colleagues."""
    config = harness.start["config"] or {}
    folder = Path(os.environ["SWE_AGENT_CONFIG_DIR"])
    base = yaml.safe_load((folder / config.get("extends", "default.yaml")).read_text())["agent"]
    settings: dict[str, Any] = merged(base, config.get("agent") or {})
    model = settings.setdefault("model", {})
    model["name"] = harness.start["model"]
    own = (config.get("agent") or {}).get("model") or {}
    for name in ("per_instance_cost_limit", "total_cost_limit"):
        # The harness counts the cost; SWE-agent's defaults would refuse models without a known price.
        model[name] = own.get(name, 0)
    tools = settings.setdefault("tools", {})
    bundles = [
        {**bundle, "path": str((folder.parent / bundle["path"]).resolve())}
        for bundle in tools.get("bundles", [])
    ]
    if harness.start["colleagues"]:
        bundles.append({"path": os.environ["COOPERBENCH_SWE_AGENT_BUNDLE"]})
    tools["bundles"] = bundles
    return settings


def merged(base: Any, over: Any) -> Any:
    """Mappings key by key, everything else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    return over


if __name__ == "__main__":
    main()
