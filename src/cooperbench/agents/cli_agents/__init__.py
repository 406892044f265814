"""Command-line agents: Claude Code, Codex, Gemini CLI, OpenCode, as people use them, without a network or a key.

Each runs in the agent's sandbox and asks the gateway, through a port on the sandbox's loopback (`forward`). What it
keeps lies in `AGENT_DIR`. Its tools for the web are switched off: some are the provider's, and need no network here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from cooperbench.agents import llm
from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.agents.cli_agents.forward import Forward
from cooperbench.agents.environments import FRAMEWORKS, InstalledAgent
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, SandboxError, UserError
from cooperbench.gateway.access import Access
from cooperbench.models import Pair, Setting
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import PROGRAMS_DIR
from cooperbench.secrets import redact
from cooperbench.text import printable

AGENT_DIR = "/cooperbench/agent"
OUTPUT_LOG = "output.log"
_PROMPT = "prompt.txt"
_SCRIPT = f"""
cd -- {REPO_DIR} || exit
PATH=$1$PATH
shift
"$@" <{AGENT_DIR}/{_PROMPT} >{AGENT_DIR}/{OUTPUT_LOG} 2>&1
echo $?
"""
_KEPT_BYTES = 500_000
"""Of its output, the last of it."""
_LAST_WORDS = 300
_MCP_SERVER = "team"
_TOKEN_VARIABLE = "COOPERBENCH_TOKEN"  # noqa: S105  # a name
_NODE = "node_modules/node-linux-*/bin/node"
_MODEL_CALL_SECONDS = 3600
"""The gateway decides how long a provider may take."""
_WAKE_SECONDS = 0.1
_NODE_SECONDS = 60.0
_TAIL_SECONDS = 10.0


class Place(NamedTuple):
    """What a program is told about its surroundings."""

    program: str
    node: str
    url: str
    """Of the gateway, as seen in the sandbox."""
    token: str
    model: str
    """Without its provider. The gateway asks the right one whatever a program calls it, but a program may know what
    this one can do."""
    messaging: bool


class Launch(NamedTuple):
    """How a program is started. It reads the prompt from stdin."""

    argv: Sequence[str]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """In `AGENT_DIR`."""


class CliAgent(InstalledAgent):
    """One agent. Subclasses say how their program is started."""

    executable: ClassVar[str]
    """Its place among the programs."""

    def launch(self, place: Place) -> Launch:
        raise NotImplementedError

    @classmethod
    def programs(cls) -> Path:
        return cls.installed().programs

    def check(self, config_path: Path | None, pairs: Sequence[Pair], setting: Setting) -> None:  # noqa: ARG002
        for pattern in (self.executable, _NODE):
            self._inside(pattern)
        _model_kwargs(config_path)

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        llm.check_model(model, _model_kwargs(config_path), base_url)
        known: dict[str, Any] = {}
        with suppress(Exception):  # one that is in no list, at a server of the user's
            known = dict(llm.load_litellm().get_model_info(model))
        mode = known.get("mode") or "chat"
        if known.get("supports_function_calling") is False or mode not in ("chat", "responses"):
            raise UserError(
                f"model {model!r} cannot call tools, says LiteLLM; {self.framework} needs one that can"
            )

    def run(self, session: AgentSession) -> None:
        from cooperbench.gateway.server import Gateway

        node = self._inside(_NODE)
        _check_node(session.sandbox, node)
        gateway = Gateway.shared()
        with (
            gateway.open(session, _model_kwargs(session.config_path)) as access,
            Forward(session.sandbox, node, gateway.port) as forward,
        ):
            place = Place(
                program=self._inside(self.executable),
                node=node,
                url=f"http://127.0.0.1:{forward.port}",
                token=access.token,
                model=access.upstream.model.rpartition("/")[2],
                messaging=session.inbox is not None,
            )
            exit_code = _run(self.launch(place), session, access)
            output = _output(session)
            outcome = access.outcome()
        if outcome is not None:
            raise outcome
        if exit_code is None:
            # Whose doing is it? If the sandbox is gone, this says so.
            session.execute("true", step=False)
        if exit_code != 0:
            how = "was killed" if exit_code is None else f"ended with exit code {exit_code}"
            last = printable(output.strip().rpartition("\n")[2].strip())[-_LAST_WORDS:]
            raise AgentFailure("crashed", f"{self.framework} {how}: {last or 'it printed nothing'}")

    def _inside(self, pattern: str) -> str:
        """As it is seen in the sandbox."""
        folder = self.programs()
        found = sorted(folder.glob(pattern))
        if not found:
            advice = FRAMEWORKS[self.framework].install_command
            raise UserError(
                f"agent {self.framework!r} is incomplete, {folder} has no {pattern}: {advice}"
            )
        return f"{PROGRAMS_DIR}/{found[0].relative_to(folder)}"


class ClaudeCodeAgent(CliAgent):
    framework = "claude_code"
    executable = "node_modules/@anthropic-ai/claude-code-linux-*/claude"

    def launch(self, place: Place) -> Launch:
        words = [
            "-p",
            "--output-format",
            "stream-json",
            "--verbose",
            "--dangerously-skip-permissions",
        ]
        words += [
            "--model",
            place.model,
            "--mcp-config",
            f"{AGENT_DIR}/mcp.json",
            "--strict-mcp-config",
        ]
        words += ["--disallowedTools", "WebFetch,WebSearch"]
        server = {"type": "http", "url": f"{place.url}/mcp", "headers": _bearer(place)}
        env = {
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": place.token,
            # For titles and the like.
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": place.model,
            "API_TIMEOUT_MS": str(_MODEL_CALL_SECONDS * 1000),
            "CLAUDE_CONFIG_DIR": AGENT_DIR,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Else it refuses to run as root without asking for permissions.
            "IS_SANDBOX": "1",
        }
        servers = {_MCP_SERVER: server} if place.messaging else {}
        return Launch(
            [place.program, *words], env, {"mcp.json": json.dumps({"mcpServers": servers})}
        )


class CodexAgent(CliAgent):
    framework = "codex"
    executable = "node_modules/@openai/codex/vendor/*/bin/codex"

    def launch(self, place: Place) -> Launch:
        words = [
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "-",
        ]
        settings: dict[str, Any] = {
            "model": place.model,
            "model_provider": "cooperbench",
            "check_for_update_on_startup": False,
            "analytics.enabled": False,
            "features.apps": False,
            "features.plugins": False,
            "web_search": "disabled",
            # These would set PATH anew.
            "allow_login_shell": False,
            "model_providers.cooperbench.name": "CooperBench",
            "model_providers.cooperbench.base_url": f"{place.url}/v1",
            "model_providers.cooperbench.env_key": _TOKEN_VARIABLE,
            "model_providers.cooperbench.wire_api": "responses",
            "model_providers.cooperbench.stream_idle_timeout_ms": _MODEL_CALL_SECONDS * 1000,
        }
        if place.messaging:
            settings |= {
                f"mcp_servers.{_MCP_SERVER}.url": f"{place.url}/mcp",
                f"mcp_servers.{_MCP_SERVER}.bearer_token_env_var": _TOKEN_VARIABLE,
            }
        config = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        # It searches with a ripgrep of its own.
        path = place.program.rpartition("/bin/")[0] + "/codex-path"
        env = {"CODEX_HOME": AGENT_DIR, _TOKEN_VARIABLE: place.token, "PATH": f"{path}:"}
        return Launch([place.program, *words], env, {"config.toml": config})


class GeminiCliAgent(CliAgent):
    framework = "gemini_cli"
    executable = "node_modules/@google/gemini-cli/bundle/gemini.js"

    def launch(self, place: Place) -> Launch:
        words = ["--yolo", "--skip-trust", "--output-format", "stream-json", "--model", place.model]
        server = {"httpUrl": f"{place.url}/mcp", "headers": _bearer(place), "trust": True}
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "tools": {"exclude": ["google_web_search", "web_fetch"]},
            "mcpServers": {_MCP_SERVER: server} if place.messaging else {},
        }
        env = {
            "GEMINI_API_KEY": place.token,
            "GOOGLE_GEMINI_BASE_URL": place.url,
            "GEMINI_CLI_HOME": AGENT_DIR,
            # Else it starts itself a second time, for more memory.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }
        argv = [place.node, place.program, *words]
        return Launch(argv, env, {".gemini/settings.json": json.dumps(settings)})


class OpenCodeAgent(CliAgent):
    framework = "opencode"
    executable = "node_modules/opencode-linux-*/bin/opencode"

    def launch(self, place: Place) -> Launch:
        server = {"type": "remote", "url": f"{place.url}/mcp", "headers": _bearer(place)}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "CooperBench",
            "options": {"baseURL": f"{place.url}/v1", "apiKey": place.token, "timeout": False},
            "models": {place.model: {}},
        }
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny"},
            "provider": {"cooperbench": provider},
            "model": f"cooperbench/{place.model}",
            "small_model": f"cooperbench/{place.model}",
            "mcp": {_MCP_SERVER: server} if place.messaging else {},
        }
        folders = ("CONFIG", "DATA", "CACHE", "STATE")
        env = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            **{f"XDG_{name}_HOME": f"{AGENT_DIR}/{name.lower()}" for name in folders},
        }
        return Launch([place.program, "run", "--format", "json"], env, {})


def _run(launch: Launch, session: AgentSession, access: Access) -> int | None:
    """Until the program or the agent ends; kills all that it started. Its exit code if it ended by itself."""
    for name, text in {**launch.files, _PROMPT: session.prompt}.items():
        session.sandbox.write_file(f"{AGENT_DIR}/{name}", text.encode())
    env = {**launch.env}
    start = ["sh", "-c", _SCRIPT, "program", env.pop("PATH", ""), "env"]
    words = [*start, *(f"{name}={value}" for name, value in env.items()), *launch.argv]
    with (
        ThreadPoolExecutor(1, "program") as pool,
        closing(session.sandbox.open_stream(words)) as stream,
    ):
        exit_code = pool.submit(stream.stdout.readline)
        while not access.ended.is_set():
            try:
                return int(exit_code.result(_WAKE_SECONDS))
            except TimeoutError:
                continue
            except (OSError, ValueError):
                break  # the sandbox is gone, or the shell around it was killed
    return None


def _output(session: AgentSession) -> str:
    """The end of what the program printed, which is kept in the agent's folder."""
    text = ""
    with suppress(SandboxError):
        done = session.sandbox.run(
            ["tail", "-c", str(_KEPT_BYTES), f"{AGENT_DIR}/{OUTPUT_LOG}"],
            timeout_seconds=_TAIL_SECONDS,
        )
        text = redact(done.stdout_read())
    (session.folder / OUTPUT_LOG).write_text(text, "utf-8")
    return text


def _bearer(place: Place) -> dict[str, str]:
    return {"Authorization": f"Bearer {place.token}"}


def _model_kwargs(config_path: Path | None) -> dict[str, Any]:
    """What an agent config may have: `model.model_kwargs`, for every call, as LiteLLM knows it."""
    match read_yaml(config_path):
        case None:
            return {}
        case {"model": {"model_kwargs": dict(kwargs), **more}, **others} if not more and not others:
            return {str(name): value for name, value in kwargs.items()}
    raise UserError(
        f"{config_path}: its config has model.model_kwargs, a mapping, and nothing else"
    )


def _check_node(sandbox: Sandbox, node: str) -> None:
    """The programs need what the images of all usual distributions have, but Alpine's."""
    done = sandbox.run([node, "--version"], timeout_seconds=_NODE_SECONDS)
    if done.timed_out:
        raise SandboxError("the sandbox takes too long to start a program")
    if done.returncode != 0:
        said = (done.stderr_read().strip() or f"exit code {done.returncode}").rpartition("\n")[2][
            :200
        ]
        raise UserError(
            f"command-line agents need an image with glibc 2.28 or newer and libstdc++: {said}"
        )
