"""How JavaScript and TypeScript projects are installed and tested: jest, vitest or node:test.

The functions run in a worker process with limits.
"""

from __future__ import annotations

import re
from typing import Any

from cooperbench.author.languages.snapshot import Snapshot, get_table
from cooperbench.author.project import Project

_TEST_FILE = re.compile(
    r"""
    (?!.*(?:^|/)node_modules/)
    (?: .* (?: [._-] (?:test|spec) | (?:^|/) test-[^/]* | (?:^|/) test )
        \. [cm]? [jt]sx?
      | (?: .*/ )? (?: test | __tests__ ) / .* \. [cm]? [jt]sx?
    )
    """,
    re.VERBOSE,
)
_UNSUPPORTED = ("mocha", "ava", "tap", "karma", "jasmine", "cypress", "playwright", "bun test")
_COMMANDS = {"jest": "npx jest", "vitest": "npx vitest run", "node": "node --test"}
_INSTALL = {
    "package-lock.json": "npm ci --no-audit --no-fund",
    "pnpm-lock.yaml": "npx --yes pnpm@9 install --frozen-lockfile",
    "yarn.lock": "npx --yes yarn@1 install --frozen-lockfile",
}
_NODE_FLAG = re.compile(r"--(?:import|require|loader|experimental-[\w-]+)(?:[= ][\w./@:-]+)?")


def is_test_file(path: str) -> bool:
    """Whether one of the frameworks would find tests in a file, by its name."""
    return bool(_TEST_FILE.fullmatch(path))


def read_project(snapshot: Snapshot) -> Project | str:
    """Return how the project is installed and tested, or why it is not supported."""
    sources: dict[str, str] = {}
    package = snapshot.json("package.json")
    scripts = get_table(package, "scripts")
    script = scripts.get("test")
    script = script if isinstance(script, str) else ""
    dependencies = {
        **get_table(package, "dependencies"),
        **get_table(package, "devDependencies"),
    }
    framework = _find_framework(script, dependencies, package)
    if not framework:
        used = [name for name in _UNSUPPORTED if name in script or name in dependencies]
        name = used[0] if used else "an unknown program"
        return f"its tests run with {name}; supported are jest, vitest and node --test"
    sources["framework"] = "package.json" if package else "names of test files"
    options = ""
    if framework == "node":
        options = " ".join(_NODE_FLAG.findall(script))
    return Project(
        language="javascript",
        framework=framework,
        install=_install_commands(snapshot, dependencies, sources),
        test_command=f"{_COMMANDS[framework]} {options}".strip(),
        test_options=options,
        base_image="node:22-slim",
        sources=sources,
    )


def _find_framework(script: str, dependencies: dict[str, Any], package: dict[str, Any]) -> str:
    """Return the framework that the test script runs; else that of the dependencies."""
    for name in ("vitest", "jest"):
        if re.search(rf"\b{name}\b", script):
            return name
    if re.search(r"\bnode\b.*--test\b", script):
        return "node"
    if any(re.search(rf"\b{name}\b", script) for name in _UNSUPPORTED):
        return ""
    for name in ("vitest", "jest"):
        if name in dependencies or name in package:
            return name
    if any(name in dependencies for name in _UNSUPPORTED):
        return ""
    return "node"


def _install_commands(
    snapshot: Snapshot, dependencies: dict[str, Any], sources: dict[str, str]
) -> tuple[str, ...]:
    for name, command in _INSTALL.items():
        if name in snapshot.files:
            sources["install"] = name
            return (command,)
    if dependencies:
        sources["install"] = "package.json"
        return ("npm install --no-audit --no-fund --no-package-lock",)
    return ()
