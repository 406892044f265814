"""Reference pages that mkdocs generates from the code: the command line, settings and prompts.

mkdocs calls `on_files` when it builds the site. Nothing of these pages is in the repository, so
they cannot be out of date. The JSON Schemas are generated, too; `on_page_markdown` links them from
the page of files.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import Field, dataclass, field, fields
from importlib.resources import files as package_files
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cooperbench.backends.docker import settings as docker
from cooperbench.backends.gcp import settings as gcp
from cooperbench.backends.images import settings as images
from cooperbench.backends.local import settings as local
from cooperbench.backends.modal import settings as modal
from cooperbench.cli import COMMANDS, main
from cooperbench.records.schema import RECORDS, json_schema, own_field_descriptions
from cooperbench.settings import GENERAL_SETTINGS

_ENTRY = re.compile(r"(?:  |    )(?P<flags>\S+(?: \S+)*)(?:  +(?P<help>.+))?")
"""The first line of an argument: `  -n NAME, --name NAME  name of the experiment`, or of an action,
which is indented by four spaces."""
_COMMANDS_INTRODUCTION = """\
# Command line

Every command with its options, as `cooperbench COMMAND --help` prints them.

| exit status | of `run`, `eval`, `sweep` and `ablate` | of other commands |
| --- | --- | --- |
| 0 | all pairs have a result | all is well |
| 1 | some pairs ended in infrastructure errors | something was found or is missing |
| 2 | a mistake in the call: one line says what to change | the same |
| 3 | `--max-cost` ended the run before all pairs were run | |
| 130 | interrupted; the same command continues | interrupted |
"""
_SETTINGS_INTRODUCTION = """\
# Settings and environment variables

A value is taken from the first of these that has it: the option of the command line or the keyword
in Python, the environment variable, `~/.config/cooperbench/config.json` (written by `cooperbench
config set NAME VALUE`), the default. API keys come from the environment, or from a file `.env` in
the working directory.

In Python, the settings of a backend are keywords of its class: `LocalBackend(pull="never")`.

## General

| variable | in config.json | meaning |
| --- | --- | --- |
"""
_PROMPTS_INTRODUCTION = """\
# Prompts

What agents are told about their features, their teammates and the ways to reach them. It is the
same for every framework; each adds its own prompts. The pair of these examples is from the demo.

`cooperbench prompts` prints the prompts of the first pair of a run, with the options of `run`, and
where the templates are. `--prompts FOLDER` takes templates from a folder in place of those of the
same name. Runs with other prompts are other experiments.
"""
_PROMPT_EXAMPLES = {
    "Two agents": ("--setting", "coop", "--git"),
    "One agent": ("--setting", "solo"),
    "A team": ("--setting", "team"),
}
"""The titles of examples, and the options of `cooperbench prompts` for them."""
_TEMPLATES = (
    *("task.md.j2", "knowledge.md.j2", "channel.md.j2"),
    *("lead.md.j2", "member.md.j2", "team_tools.md.j2"),
)
_SECTIONS: Mapping[str, tuple[type, Mapping[str, str], Mapping[str, str]]] = {
    "local": (local.LocalSettings, local.VARIABLES, {}),
    "images": (images.ImageSettings, {}, {}),
    "docker": (docker.DockerSettings, docker.VARIABLES, {}),
    "modal": (modal.ModalSettings, modal.VARIABLES, {}),
    "gcp": (gcp.GcpSettings, gcp.VARIABLES, gcp.KEYS),
}
"""For each section the class of its settings, variables with other names, and keys in config.json
with other names."""
MAX_USAGE_LINES = 6
HELP_COLUMNS = 80
"""Width of the usage lines, which have to fit the page."""
_TITLES = {"images": "Images of the backend local"}
"""Titles of sections that are not called like a backend."""
_GIGABYTES = {"docker.memory": "8g", "modal.memory": "2g:8g"}
"""Defaults as users write them, where the settings have another unit."""


@dataclass
class Argument:
    """One argument of a command."""

    flags: str
    help: str = ""


@dataclass
class Help:
    """What `--help` prints for a command."""

    usage: str = ""
    description: str = ""
    groups: dict[str, list[Argument]] = field(default_factory=dict)
    """The arguments by the title of their group."""

    @property
    def actions(self) -> list[str]:
        """The actions of the command, as `list` and `install` of `cooperbench agents`."""
        arguments = self.groups.get("positional arguments", [])
        if not arguments or arguments[0].flags != "ACTION":
            return []
        return [argument.flags for argument in arguments[1:]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; mkdocs calls this."""
    pages: dict[str, Callable[[], str]] = {
        "reference-commands.md": commands_page,
        "reference-settings.md": settings_page,
        "reference-prompts.md": prompts_page,
    }
    for name, make_page in pages.items():
        files.append(File.generated(config, name, content=make_page()))
    for name in RECORDS:
        schema = json.dumps(json_schema(name), indent=2)
        files.append(File.generated(config, f"schemas/{name}.json", content=schema))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add links to the JSON Schemas to the page of files; mkdocs calls this."""
    del config, files
    if page.file.src_uri != "files.md":
        return markdown
    for name in RECORDS:
        link = f"[JSON Schema](schemas/{name}.json)"
        markdown = re.sub(
            rf"(?<=^## {name}\n\n)(.*)$", rf"\1 · {link}", markdown, count=1, flags=re.M
        )
    return markdown


def commands_page() -> str:
    """Return the page of all commands."""
    lines = [_COMMANDS_INTRODUCTION]
    for command in COMMANDS:
        command_help = parse_help(_help_text(command))
        lines += [f"## {command}", *_command_section(command_help)]
        for action in command_help.actions:
            lines += [f"### {command} {action}"]
            lines += _command_section(parse_help(_help_text(command, action)))
    return "\n".join(lines)


def _command_section(command_help: Help) -> Iterator[str]:
    yield from ("", command_help.description, "")
    yield from ("```text", _short_usage(command_help.usage), "```", "")
    for title, group in command_help.groups.items():
        shown = [argument for argument in group if argument.flags != "-h, --help"]
        if shown:
            yield from _argument_table(title, shown)


def _short_usage(usage: str) -> str:
    """Return the usage of a command; without its options if they are many, for they are below."""
    lines = usage.splitlines()
    if len(lines) > MAX_USAGE_LINES:
        last_line = lines[-1].strip()
        arguments = "" if last_line.startswith("[-") else f" {last_line}"
        return f"{lines[0].partition(' [')[0]} OPTIONS{arguments}"
    return "\n".join(line.replace(" " * len("usage: "), "", 1) for line in lines)


def _help_text(*command: str) -> str:
    """Return what `cooperbench COMMAND --help` prints."""
    return _output_of(*command, "--help", columns=HELP_COLUMNS)


def _output_of(*arguments: str, columns: int = 100) -> str:
    """Return what a call of cooperbench prints on a terminal with so many columns."""
    output = io.StringIO()
    outer_columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            status = main(arguments)
    finally:
        del os.environ["COLUMNS"]
        if outer_columns is not None:
            os.environ["COLUMNS"] = outer_columns
    assert status == 0, arguments
    return output.getvalue()


def parse_help(text: str) -> Help:
    """Return the parts of a help text of argparse."""
    paragraphs = text.strip().split("\n\n")
    parsed = Help(usage=paragraphs[0].removeprefix("usage: "))
    for paragraph in paragraphs[1:]:
        title, *lines = paragraph.split("\n")
        if not title.endswith(":"):
            parsed.description += " ".join(line.strip() for line in paragraph.split("\n")) + "\n\n"
            continue
        arguments: list[Argument] = []
        for line in lines:
            first_line = _ENTRY.fullmatch(line)
            if first_line and not line.startswith("     "):
                arguments.append(Argument(first_line["flags"], first_line["help"] or ""))
            elif arguments:
                arguments[-1].help = f"{arguments[-1].help} {line.strip()}".strip()
        parsed.groups[title.removesuffix(":")] = arguments
    return parsed


def _argument_table(title: str, arguments: list[Argument]) -> Iterator[str]:
    yield f"| {_escape(title)} | |"
    yield "| --- | --- |"
    for argument in arguments:
        yield f"| `{_escape(argument.flags)}` | {_escape(argument.help)} |"
    yield ""


def settings_page() -> str:
    """Return the page of all settings."""
    lines = [_SETTINGS_INTRODUCTION.rstrip()]
    for general in GENERAL_SETTINGS:
        key = f"`{general.key}`" if general.key else ""
        lines.append(f"| `{general.variable}` | {key} | {general.meaning} |")
    for section in _SECTIONS:
        lines += ["", f"## {_TITLES.get(section, f'Backend {section}')}", ""]
        lines += ["| variable | in config.json | default | meaning |", "| --- | --- | --- | --- |"]
        lines += _section_rows(section)
    return "\n".join(lines)


def _section_rows(section: str) -> Iterator[str]:
    settings_class, variables, keys = _SECTIONS[section]
    descriptions = own_field_descriptions(settings_class)
    for setting in fields(settings_class):
        name = setting.name
        variable = variables.get(name, f"COOPERBENCH_{section}_{name}".upper())
        if not variable and name == "image_template":
            variable = "COOPERBENCH_IMAGE_TEMPLATE"
        variable_text = f"`{variable}`" if variable else ""
        key = keys.get(name, f"{section}.{name}")
        default = _default_text(key, setting)
        yield f"| {variable_text} | `{key}` | {default} | {_escape(descriptions[name])} |"


def prompts_page() -> str:
    """Return the page of prompts: examples from the demo, and the templates."""
    lines = [_PROMPTS_INTRODUCTION]
    demo = ("--dataset-dir", "demo", "-r", "stencil_task", "-f", "1,2")
    for title, options in _PROMPT_EXAMPLES.items():
        prompts = _output_of("prompts", *demo, "--backend", "local", "-a", "oracle", *options)
        lines += [f"## {title}", "", f"`cooperbench prompts {' '.join(options)}`", ""]
        lines += ["````text", prompts.rstrip(), "````", ""]
    lines += ["## Templates", "", "They are [Jinja](https://jinja.palletsprojects.com) templates."]
    for name in _TEMPLATES:
        template = package_files("cooperbench.team") / "templates" / name
        lines += ["", f"### {name}", "", "````jinja", template.read_text().rstrip(), "````"]
    return "\n".join(lines)


def _default_text(key: str, setting: Field[Any]) -> str:
    assert callable(setting.default_factory)
    default = setting.default_factory()
    if default is None or default in ("", (), {}):
        return ""
    text = str(default)
    if isinstance(default, tuple):  # reserved and limit, as Modal has them
        text = ":".join(f"{value:g}" for value in default)
    elif isinstance(default, bool):
        text = text.lower()
    elif isinstance(default, float):
        text = f"{default:g}"
    if key in _GIGABYTES:
        text = _GIGABYTES[key]
        assert setting.metadata["parse"](text) == default, key
    return f"`{_escape(text)}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
