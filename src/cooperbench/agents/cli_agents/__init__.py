"""Command-line agents: Claude Code, Codex, Gemini CLI and OpenCode.

Each program runs in the agent's sandbox, without a network and without a key. It reaches the
gateway through a port on the sandbox's loopback (`forward`), and keeps its files in a folder below
`AGENTS_DIR`.
Its web tools are switched off: some of them run at the provider and would work without a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from cooperbench.agents import llm
from cooperbench.agents.base import REPO_DIR, read_yaml
from cooperbench.agents.cli_agents.forward import Forward
from cooperbench.agents.environments import FRAMEWORKS, InstalledAgent
from cooperbench.agents.session import AgentSession
from cooperbench.errors import AgentFailure, SandboxError, UserError
from cooperbench.gateway.access import Access
from cooperbench.models import Pair, Setting
from cooperbench.records import JsonObject
from cooperbench.sandbox.base_sandbox import Sandbox
from cooperbench.sandbox.contract import PROGRAMS_DIR
from cooperbench.secrets import redact
from cooperbench.text import printable

AGENTS_DIR = "/cooperbench/agent"
OUTPUT_LOG = "output.log"
_PROMPT = "prompt.txt"
_SCRIPT = f"""
cd -- {REPO_DIR} || exit
folder=$1
PATH=$2$PATH
shift 2
"$@" <"$folder/{_PROMPT}" >"$folder/{OUTPUT_LOG}" 2>&1
echo $?
"""
_MAX_OUTPUT_BYTES = 500_000
"""Length of the end of a program's output that is kept."""
_MAX_LAST_LINE_CHARACTERS = 300
_MAX_REASON_CHARACTERS = 200
_MCP_SERVER = "team"
_TOKEN_VARIABLE = "COOPERBENCH_TOKEN"  # noqa: S105  # the name of a variable
_NODE = "node_modules/node-linux-*/bin/node"
_MODEL_CALL_SECONDS = 3600
"""Timeout of programs for a model call. It is long, because the gateway has its own."""
_POLL_SECONDS = 0.1
_NODE_SECONDS = 60.0
_TAIL_SECONDS = 10.0


class Surroundings(NamedTuple):
    """A program's surroundings in its sandbox."""

    program: str
    """Path of the program."""
    node: str
    """Path of Node.js."""
    url: str
    """Address of the gateway."""
    token: str
    """Token for the gateway."""
    folder: str
    """Folder of the program's own files."""
    model: str
    """Name of the model without its provider.

    The gateway ignores the model's name in requests, but the program may know what it can do.
    """
    messaging: bool
    """Whether the agent has teammates or tools of the team."""

    @property
    def authorization(self) -> dict[str, str]:
        """The header for requests to the gateway's MCP server."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def mcp_url(self) -> str:
        """Address of the gateway's MCP server."""
        return f"{self.url}/mcp"


class Launch(NamedTuple):
    """The command line of a program, which reads the prompt from stdin."""

    argv: Sequence[str]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Contents of files in the program's folder, by their names."""


class CliAgent(InstalledAgent):
    """A command-line agent. Subclasses define how their program is started."""

    executable: ClassVar[str]
    """Pattern of the program's path below the folder of programs."""

    def launch(self, surroundings: Surroundings) -> Launch:
        """Return the command line of the program."""
        raise NotImplementedError

    @classmethod
    def programs(cls) -> Path:
        """Return the folder that sandboxes see as `PROGRAMS_DIR`."""
        return cls.installed().programs

    def check(
        self,
        config_path: Path | None,
        pairs: Sequence[Pair],  # noqa: ARG002  # all pairs are alike
        setting: Setting,  # noqa: ARG002  # all settings are alike
    ) -> None:
        """Check that the program is installed and that the config is valid."""
        for pattern in (self.executable, _NODE):
            self.path_in_sandbox(pattern)
        _read_model_kwargs(config_path)

    def check_model(
        self, model: str, config_path: Path | None, base_url: str | None = None
    ) -> None:
        """Check that the model can be called, and that it can call tools."""
        llm.check_model(model, _read_model_kwargs(config_path), base_url)
        info: JsonObject = {}
        with suppress(Exception):  # LiteLLM does not know models of the user's own server
            info = dict(llm.load_litellm().get_model_info(model))
        mode = info.get("mode") or "chat"
        if info.get("supports_function_calling") is False or mode not in ("chat", "responses"):
            raise UserError(
                f"model {model!r} cannot call tools according to LiteLLM; "
                f"{self.framework} needs a model that can"
            )

    def run(self, session: AgentSession) -> None:
        """Run the program until it or the agent ends."""
        with session.remembering_faults():
            self._run(session)

    def _run(self, session: AgentSession) -> None:
        from cooperbench.gateway.server import Gateway

        node = self.path_in_sandbox(_NODE)
        _check_node(session.sandbox, node)
        gateway = Gateway.shared()
        with (
            gateway.open(session, _read_model_kwargs(session.config_path)) as access,
            Forward(session.sandbox, node, gateway.port) as forward,
        ):
            surroundings = Surroundings(
                program=self.path_in_sandbox(self.executable),
                node=node,
                url=f"http://127.0.0.1:{forward.port}",
                token=access.token,
                folder=agent_folder(session),
                model=access.upstream.model.rpartition("/")[2],
                messaging=session.inbox is not None,
            )
            exit_code = _run_program(self.launch(surroundings), session, access)
            output = _keep_output(session)
            outcome = access.outcome()
        if outcome is not None:
            raise outcome
        if exit_code is None:
            # The program was killed. This raises an error if the sandbox is gone.
            session.execute("true", step=False)
        if exit_code != 0:
            end = "was killed" if exit_code is None else f"ended with exit code {exit_code}"
            last_line = printable(output.strip().rpartition("\n")[2].strip())
            reason = last_line[-_MAX_LAST_LINE_CHARACTERS:] or "it printed nothing"
            raise AgentFailure("crashed", f"{self.framework} {end}: {reason}")

    def path_in_sandbox(self, pattern: str) -> str:
        """Return the path of an installed file, as sandboxes see it."""
        folder = self.programs()
        paths = sorted(folder.glob(pattern))
        if not paths:
            advice = FRAMEWORKS[self.framework].install_command
            raise UserError(
                f"agent {self.framework!r} is incomplete, {folder} has no {pattern}: {advice}"
            )
        return f"{PROGRAMS_DIR}/{paths[0].relative_to(folder)}"


class ClaudeCodeAgent(CliAgent):
    """Claude Code, which uses Anthropic's API format."""

    framework = "claude_code"
    executable = "node_modules/@anthropic-ai/claude-code-linux-*/claude"

    def launch(self, surroundings: Surroundings) -> Launch:
        """Return the command line of Claude Code."""
        model = surroundings.model
        argv = [surroundings.program, "-p", "--output-format", "stream-json", "--verbose"]
        argv += ["--dangerously-skip-permissions", "--model", model]
        argv += ["--mcp-config", f"{surroundings.folder}/mcp.json", "--strict-mcp-config"]
        argv += ["--disallowedTools", "WebFetch,WebSearch"]
        env = {
            "ANTHROPIC_BASE_URL": surroundings.url,
            "ANTHROPIC_AUTH_TOKEN": surroundings.token,
            # It uses a small model for titles and summaries.
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
            "API_TIMEOUT_MS": str(_MODEL_CALL_SECONDS * 1000),
            "CLAUDE_CONFIG_DIR": surroundings.folder,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Otherwise it refuses to run as root without asking for permissions.
            "IS_SANDBOX": "1",
        }
        servers = {}
        if surroundings.messaging:
            servers[_MCP_SERVER] = {
                "type": "http",
                "url": surroundings.mcp_url,
                "headers": surroundings.authorization,
            }
        return Launch(argv, env, {"mcp.json": json.dumps({"mcpServers": servers})})


class CodexAgent(CliAgent):
    """Codex, which uses OpenAI's responses API."""

    framework = "codex"
    executable = "node_modules/@openai/codex/vendor/*/bin/codex"

    def launch(self, surroundings: Surroundings) -> Launch:
        """Return the command line of Codex."""
        argv = [surroundings.program, "exec", "--json", "--skip-git-repo-check"]
        argv += ["--dangerously-bypass-approvals-and-sandbox", "-"]
        settings: JsonObject = {
            "model": surroundings.model,
            "model_provider": "cooperbench",
            "check_for_update_on_startup": False,
            "analytics.enabled": False,
            "features.apps": False,
            "features.plugins": False,
            "web_search": "disabled",
            # Login shells would reset PATH.
            "allow_login_shell": False,
            "model_providers.cooperbench.name": "CooperBench",
            "model_providers.cooperbench.base_url": f"{surroundings.url}/v1",
            "model_providers.cooperbench.env_key": _TOKEN_VARIABLE,
            "model_providers.cooperbench.wire_api": "responses",
            "model_providers.cooperbench.stream_idle_timeout_ms": _MODEL_CALL_SECONDS * 1000,
        }
        if surroundings.messaging:
            server = f"mcp_servers.{_MCP_SERVER}"
            settings[f"{server}.url"] = surroundings.mcp_url
            settings[f"{server}.bearer_token_env_var"] = _TOKEN_VARIABLE
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        # Codex brings its own ripgrep.
        ripgrep_folder = surroundings.program.rpartition("/bin/")[0] + "/codex-path"
        env = {
            "CODEX_HOME": surroundings.folder,
            _TOKEN_VARIABLE: surroundings.token,
            "PATH": f"{ripgrep_folder}:",
        }
        return Launch(argv, env, {"config.toml": "".join(lines)})


class GeminiCliAgent(CliAgent):
    """Gemini CLI, which uses Gemini's API format."""

    framework = "gemini_cli"
    executable = "node_modules/@google/gemini-cli/bundle/gemini.js"

    def launch(self, surroundings: Surroundings) -> Launch:
        """Return the command line of Gemini CLI."""
        argv = [surroundings.node, surroundings.program, "--yolo", "--skip-trust"]
        argv += ["--output-format", "stream-json", "--model", surroundings.model]
        servers = {}
        if surroundings.messaging:
            servers[_MCP_SERVER] = {
                "httpUrl": surroundings.mcp_url,
                "headers": surroundings.authorization,
                "trust": True,
            }
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "tools": {"exclude": ["google_web_search", "web_fetch"]},
            "mcpServers": servers,
        }
        env = {
            "GEMINI_API_KEY": surroundings.token,
            "GOOGLE_GEMINI_BASE_URL": surroundings.url,
            "GEMINI_CLI_HOME": surroundings.folder,
            # Otherwise it starts itself again with more memory.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }
        return Launch(argv, env, {".gemini/settings.json": json.dumps(settings)})


class OpenCodeAgent(CliAgent):
    """OpenCode, which uses OpenAI's chat completions."""

    framework = "opencode"
    executable = "node_modules/opencode-linux-*/bin/opencode"

    def launch(self, surroundings: Surroundings) -> Launch:
        """Return the command line of OpenCode."""
        model = surroundings.model
        options = {
            "baseURL": f"{surroundings.url}/v1",
            "apiKey": surroundings.token,
            "timeout": False,
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "CooperBench",
            "options": options,
            "models": {model: {}},
        }
        servers = {}
        if surroundings.messaging:
            servers[_MCP_SERVER] = {
                "type": "remote",
                "url": surroundings.mcp_url,
                "headers": surroundings.authorization,
            }
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny"},
            "provider": {"cooperbench": provider},
            "model": f"cooperbench/{model}",
            "small_model": f"cooperbench/{model}",
            "mcp": servers,
        }
        env = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        for folder in ("config", "data", "cache", "state"):
            env[f"XDG_{folder.upper()}_HOME"] = f"{surroundings.folder}/{folder}"
        return Launch([surroundings.program, "run", "--format", "json"], env, {})


def agent_folder(session: AgentSession) -> str:
    """Return the folder of the program's own files. The sandbox may have programs of others."""
    return f"{AGENTS_DIR}/{session.slot.agent_id}"


def _run_program(launch: Launch, session: AgentSession, access: Access) -> int | None:
    """Run a program until it or the agent ends, and kill everything that it started.

    Return its exit code; None if it did not end by itself.
    """
    folder = agent_folder(session)
    for name, text in {**launch.files, _PROMPT: session.prompt}.items():
        session.sandbox.write_file(f"{folder}/{name}", text.encode())
    env = {**session.environment, **launch.env}
    path_prefix = env.pop("PATH", "")
    variables = [f"{name}={value}" for name, value in env.items()]
    argv = ["sh", "-c", _SCRIPT, "program", folder, path_prefix, "env", *variables, *launch.argv]
    with (
        session.watch_command(session.steps),
        ThreadPoolExecutor(1, "program") as pool,
        closing(session.sandbox.open_stream(argv)) as stream,
    ):
        exit_code = pool.submit(stream.stdout.readline)
        while not access.ended.is_set():
            try:
                return int(exit_code.result(_POLL_SECONDS))
            except TimeoutError:
                continue
            except (OSError, ValueError):
                break  # the sandbox is gone, or the shell around the program was killed
    return None


def _keep_output(session: AgentSession) -> str:
    """Return the end of the program's output, which is also kept in the agent's folder."""
    text = ""
    with suppress(SandboxError):
        result = session.sandbox.run(
            ["tail", "-c", str(_MAX_OUTPUT_BYTES), f"{agent_folder(session)}/{OUTPUT_LOG}"],
            timeout_seconds=_TAIL_SECONDS,
        )
        text = redact(result.stdout_read())
    (session.folder / OUTPUT_LOG).write_text(text, "utf-8")
    return text


def _read_model_kwargs(config_path: Path | None) -> JsonObject:
    """Return `model.model_kwargs` of an agent config: LiteLLM's arguments for every call."""
    match read_yaml(config_path):
        case None:
            return {}
        case {"model": {"model_kwargs": dict(kwargs), **rest}, **others} if not rest and not others:
            return {str(name): value for name, value in kwargs.items()}
    raise UserError(
        f"{config_path}: the config may only have model.model_kwargs, which is a mapping"
    )


def _check_node(sandbox: Sandbox, node: str) -> None:
    """Check that Node.js runs in the image, so that the programs run too. It does not on Alpine."""
    result = sandbox.run([node, "--version"], timeout_seconds=_NODE_SECONDS)
    if result.timed_out:
        raise SandboxError("the sandbox takes too long to start a program")
    if result.returncode != 0:
        stderr = result.stderr_read().strip() or f"exit code {result.returncode}"
        reason = stderr.rpartition("\n")[2][:_MAX_REASON_CHARACTERS]
        raise UserError(
            f"command-line agents need an image with glibc 2.28 or newer and libstdc++: {reason}"
        )
