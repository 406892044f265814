"""How Python projects are installed and tested: pytest or unittest.

The functions run in a worker process with limits.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

from cooperbench.author.languages.locks import Lock, read_lock
from cooperbench.author.languages.snapshot import Snapshot, get_table, test_commands
from cooperbench.author.project import Project
from cooperbench.text import names_for_error

_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_tests?|tests?)\.py")
_TEST_GROUP = re.compile(r"(?:unit)?[-_]?tests?(?:ing|s)?|pytest", re.IGNORECASE)
_DEV_GROUP = re.compile(r"dev(?:elop(?:ment)?)?", re.IGNORECASE)
_TEST_REQUIREMENTS = re.compile(
    r"(?:test[-_]?requirements|requirements[-_.]tests?|requirements/(?:test|tests|testing|pytest))"
    r"(?:\.txt)"
)
_DEV_REQUIREMENTS = re.compile(
    r"(?:dev[-_]?requirements|requirements[-_.]dev|requirements/dev)\.txt"
)
_EXTRAS_NAME = re.compile(r"extras?(?:_require)?s?", re.IGNORECASE)
_TEST_FOLDERS = re.compile(r"/?(?:^|(?<=/))tests?(?:/.*)?$")
_PYTEST_SECTIONS = {"setup.cfg": "tool:pytest", "tox.ini": "pytest", "pytest.ini": "pytest"}
_DEFAULT_MINOR = 12
_NEWEST_MINOR = 13
_MAX_DEPTH = 5
CONSTRAINTS = "base/constraints.txt"
"""The versions of the lock file, in a task's folder."""
_PIP = '"$(dirname "$DEST")/venv/bin/python" -m pip install -q --disable-pip-version-check'


def is_test_file(path: str) -> bool:
    """Whether pytest or unittest would find tests in a file, by its name."""
    return bool(_TEST_FILE.fullmatch(path))


def read_project(snapshot: Snapshot) -> Project | str:
    """Return how the project is installed and tested, or why it is not supported."""
    sources: dict[str, str] = {}
    framework = _find_framework(snapshot, sources)
    lock = read_lock(snapshot)
    install = _install_commands(snapshot, framework, lock, sources)
    options = ""
    command = "python -m pytest"
    if framework == "unittest":
        options = _discovery_options(snapshot)
        if not options and not _finds_tests_at_top(snapshot):
            return _explain_tests_in_parts(snapshot)
        command = f"python -m unittest discover {options}".strip()
    return Project(
        language="python",
        framework=framework,
        install=install,
        test_command=command,
        test_options=options,
        constraints=lock.constraints,
        base_image=f"python:3.{_find_python(snapshot)}-slim",
        sources=sources,
    )


def _find_framework(snapshot: Snapshot, sources: dict[str, str]) -> str:
    """Return `pytest` or `unittest`, and record the file that says so."""
    origin = _file_that_configures_pytest(snapshot)
    if not origin:
        for command, file in test_commands(snapshot):
            if re.search(r"\b(?:pytest|py\.test)\b", command):
                origin = file
                break
            if re.search(r"\bunittest\b|setup\.py test", command):
                sources["framework"] = file
                return "unittest"
    if not origin:
        tests = [path for path in snapshot.using_pytest if is_test_file(path)]
        origin = tests[0] if tests else ""
    if origin:
        sources["framework"] = origin
        return "pytest"
    sources["framework"] = "no file mentions pytest"
    return "unittest"


def _file_that_configures_pytest(snapshot: Snapshot) -> str:
    if get_table(snapshot.toml("pyproject.toml"), "tool", "pytest"):
        return "pyproject.toml"
    for name, section in _PYTEST_SECTIONS.items():
        if snapshot.ini(name).has_section(section):
            return name
    for path in snapshot.paths:
        if path.rpartition("/")[2] == "conftest.py":
            return path
    return ""


def _discovery_options(snapshot: Snapshot) -> str:
    """Return the arguments with which unittest finds the tests of the project."""
    for command, _ in test_commands(snapshot):
        if match := re.search(r"unittest discover\s+([\w./ *'\"-]+)$", command):
            return match[1].replace("-v", "").strip()
    folders = {path.partition("/")[0] for path in snapshot.paths if is_test_file(path)}
    for folder in ("tests", "test"):
        if folder in folders:
            return f"-s {folder} -t ."
    return ""


def _finds_tests_at_top(snapshot: Snapshot) -> bool:
    """Whether unittest finds a test file from the top, which it does only in packages."""
    paths = set(snapshot.paths)
    for path in snapshot.paths:
        folders = path.split("/")[:-1]
        packages = ["/".join(folders[: depth + 1]) for depth in range(len(folders))]
        is_importable = all(f"{package}/__init__.py" in paths for package in packages)
        if is_test_file(path) and is_importable:
            return True
    return False


def _explain_tests_in_parts(snapshot: Snapshot) -> str:
    parts = set()
    for path in snapshot.paths:
        if is_test_file(path):
            parts.add(_TEST_FOLDERS.sub("", path.rpartition("/")[0]) or ".")
    names = names_for_error(sorted(parts - {"."})) or names_for_error(sorted(parts))
    return f"unittest finds no tests at its top; name a part with --path: {names}"


def _install_commands(
    snapshot: Snapshot, framework: str, lock: Lock, sources: dict[str, str]
) -> tuple[str, ...]:
    is_package = _is_package(snapshot)
    requirements = _test_requirements(snapshot, sources)
    if not is_package and not requirements and framework == "unittest":
        return ()
    targets = []
    if is_package:
        if not any(requirement.startswith("-e ") for requirement in requirements):
            targets.append("-e .")
        sources.setdefault("install", "pyproject.toml" if _has_build(snapshot) else "setup.py")
    if framework == "pytest":
        targets.append("pytest")
    targets += requirements
    return ('python3 -m venv "$(dirname "$DEST")/venv"', _pip_command(targets, lock, sources))


def _pip_command(targets: list[str], lock: Lock, sources: dict[str, str]) -> str:
    """Return the command that installs targets, each once, in the versions of the lock file."""
    arguments = " ".join(dict.fromkeys(targets))
    command = f"{_PIP} {arguments}"
    if lock.constraints:
        sources["versions"] = lock.path
        # Not every version runs on every Python: then the newest ones that do.
        return f'{_PIP} -c "$HERE/{CONSTRAINTS}" {arguments} || {command}'
    return command


def _is_package(snapshot: Snapshot) -> bool:
    if "setup.py" in snapshot.files or "setup.cfg" in snapshot.files:
        return "setup.py" in snapshot.files or snapshot.ini("setup.cfg").has_section("metadata")
    return _has_build(snapshot)


def _has_build(snapshot: Snapshot) -> bool:
    document = snapshot.toml("pyproject.toml")
    return any(name in document for name in ("build-system", "project")) or bool(
        get_table(document, "tool", "poetry")
    )


def _test_requirements(snapshot: Snapshot, sources: dict[str, str]) -> list[str]:
    """Return arguments of pip for what the tests need, from the first file that says it."""
    readers = (
        *(_from_pyproject, _from_setup_cfg, _from_setup_py),
        *(_from_requirement_files, _from_tox),
    )
    for find in readers:
        requirements, file = find(snapshot)
        if requirements:
            sources["requirements"] = file
            return requirements
    return []


def _from_pyproject(snapshot: Snapshot) -> tuple[list[str], str]:
    document = snapshot.toml("pyproject.toml")
    groups = get_table(document, "dependency-groups")
    extras = get_table(document, "project", "optional-dependencies")
    poetry = get_table(document, "tool", "poetry", "group")
    poetry_groups = {name: _poetry_names(table) for name, table in poetry.items()}
    poetry_groups["dev"] = [
        *poetry_groups.get("dev", []),
        *_poetry_names({"dependencies": get_table(document, "tool", "poetry", "dev-dependencies")}),
    ]
    for pattern in (_TEST_GROUP, _DEV_GROUP):
        requirements: list[str] = []
        for tables in (groups, extras, poetry_groups):
            for name in tables:
                if pattern.fullmatch(name):
                    requirements += _expand_group(tables, name)
        if requirements:
            return _quote_all(requirements), "pyproject.toml"
    return [], ""


def _expand_group(tables: dict[str, Any], name: str, depth: int = 0) -> list[str]:
    """Return the requirements of a group, also of groups that it includes."""
    entries = tables.get(name)
    if not isinstance(entries, list):
        return []
    requirements = []
    for entry in entries:
        if isinstance(entry, str):
            requirements.append(entry)
        elif isinstance(entry, dict) and depth < _MAX_DEPTH:
            included = str(entry.get("include-group", ""))
            requirements += _expand_group(tables, included, depth + 1)
    return requirements


def _poetry_names(table: object) -> list[str]:
    return [name for name in get_table(table, "dependencies") if name != "python"]


def _from_setup_cfg(snapshot: Snapshot) -> tuple[list[str], str]:
    parser = snapshot.ini("setup.cfg")
    section = "options.extras_require"
    if not parser.has_section(section):
        return [], ""
    for pattern in (_TEST_GROUP, _DEV_GROUP):
        for name in parser.options(section):
            if pattern.fullmatch(name):
                lines = (parser.get(section, name) or "").splitlines()
                return _quote_all(lines), "setup.cfg"
    return [], ""


def _from_setup_py(snapshot: Snapshot) -> tuple[list[str], str]:
    """Return the package with the extra that the tests need, as setup.py names it."""
    names = _extras_in_code(snapshot.text("setup.py"))
    for pattern in (_TEST_GROUP, _DEV_GROUP):
        extras = [name for name in names if pattern.fullmatch(name)]
        if extras:
            return [f"-e {shlex.quote(f'.[{extras[0]}]')}"], "setup.py"
    return [], ""


def _extras_in_code(code: str) -> list[str]:
    """Return the names of the extras in a setup.py, which is parsed and not run."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "extras_require":
            names += _keys_of(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names += _extras_of_assignment(target, node.value)
    return list(dict.fromkeys(names))


def _extras_of_assignment(target: ast.expr, value: ast.expr) -> list[str]:
    """Return the extras in `EXTRAS_REQUIRE = {…}` and `extras_require["tests"] = […]`."""
    if isinstance(target, ast.Name) and _EXTRAS_NAME.fullmatch(target.id):
        return _keys_of(value)
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        key = target.slice
        is_extra = _EXTRAS_NAME.fullmatch(target.value.id)
        if is_extra and isinstance(key, ast.Constant) and isinstance(key.value, str):
            return [key.value]
    return []


def _keys_of(node: ast.expr) -> list[str]:
    if not isinstance(node, ast.Dict):
        return []
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    return [key for key in keys if isinstance(key, str)]


def _from_requirement_files(snapshot: Snapshot) -> tuple[list[str], str]:
    for pattern in (_TEST_REQUIREMENTS, _DEV_REQUIREMENTS):
        names = [name for name in sorted(snapshot.files) if pattern.fullmatch(name)]
        if names:
            return [f"-r {name}" for name in names], names[0]
    if "requirements.txt" in snapshot.files and not _is_package(snapshot):
        return ["-r requirements.txt"], "requirements.txt"
    return [], ""


def _from_tox(snapshot: Snapshot) -> tuple[list[str], str]:
    tox = snapshot.ini("tox.ini")
    lines = (tox.get("testenv", "deps", fallback="") or "").splitlines()
    requirements = []
    for line in lines:
        # `py38: name` is for some interpreters only.
        text = line.split(" #")[0].strip()
        if text.startswith("-r"):
            requirements.append(f"-r {shlex.quote(text[2:].strip())}")
        elif re.fullmatch(r"[\w.-]+(?:\[[\w,.-]+\])?(?:\s*[<>=!~].*)?", text):
            requirements.append(shlex.quote(text))
    return requirements, "tox.ini"


def _quote_all(requirements: list[str]) -> list[str]:
    """Return requirements as arguments of a shell command, without empty lines and options."""
    quoted = []
    for requirement in requirements:
        text = requirement.strip()
        if re.match(r"[A-Za-z0-9]", text) and "\n" not in text:
            quoted.append(shlex.quote(text))
    return list(dict.fromkeys(quoted))


def _find_python(snapshot: Snapshot) -> int:
    """Return the minor version of Python for images: the newest that the project names."""
    names = get_table(snapshot.toml("pyproject.toml"), "project").get("classifiers")
    text = "\n".join(str(name) for name in names) if isinstance(names, list) else ""
    text += snapshot.text("setup.cfg") + snapshot.text("setup.py")
    minors = [int(minor) for minor in re.findall(r"Python :: 3\.(\d{1,2})\b", text)]
    supported = [minor for minor in minors if minor <= _NEWEST_MINOR]
    return max(supported, default=_DEFAULT_MINOR)
