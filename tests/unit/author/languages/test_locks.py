"""Versions from the lock files of Python projects."""

from __future__ import annotations

from cooperbench.author.languages.locks import read_lock
from cooperbench.author.languages.snapshot import Snapshot


def lock_of(**files: str) -> tuple[list[str], str]:
    contents = {name.replace("_", "."): text.encode() for name, text in files.items()}
    lock = read_lock(Snapshot("", list(contents), contents, []))
    return list(lock.constraints), lock.path


def package(name: str, version: str, more: str = "") -> str:
    return f'[[package]]\nname = "{name}"\nversion = "{version}"\n{more}\n'


REGISTRY = 'source = { registry = "https://example.invalid/simple" }'


def test_released_packages_are_pinned() -> None:
    text = package("pytest", "8.4.2", REGISTRY) + package("attrs", "25.1.0", REGISTRY)
    assert lock_of(uv_lock=text) == (["attrs==25.1.0", "pytest==8.4.2"], "uv.lock")


def test_the_project_itself_and_git_sources_are_not() -> None:
    text = (
        package("shapes", "1.0", 'source = { editable = "." }')
        + package("fork", "1.0", 'source = { git = "https://example.invalid/fork" }')
        + package("attrs", "25.1.0", REGISTRY)
    )
    assert lock_of(uv_lock=text)[0] == ["attrs==25.1.0"]


def test_versions_for_other_interpreters_have_markers() -> None:
    old = "resolution-markers = [\"python_full_version < '3.10'\"]"
    new = "resolution-markers = [\"python_full_version >= '3.12'\", \"python_version == '3.11'\"]"
    text = package("click", "8.1.8", f"{REGISTRY}\n{old}")
    text += package("click", "8.3.0", f"{REGISTRY}\n{new}")
    assert lock_of(uv_lock=text)[0] == [
        "click==8.1.8 ; (python_full_version < '3.10')",
        "click==8.3.0 ; (python_full_version >= '3.12') or (python_version == '3.11')",
    ]


def test_poetry_names_no_source() -> None:
    assert lock_of(poetry_lock=package("attrs", "25.1.0")) == (["attrs==25.1.0"], "poetry.lock")


def test_hostile_and_broken_files_give_nothing() -> None:
    assert lock_of(uv_lock="[[package") == ([], "")
    assert lock_of(uv_lock='package = ["a", 3]') == ([], "")
    text = package("attrs --index-url=https://x", "1") + package("attrs", "1\\n-r /etc/passwd")
    text += package("b", "1", 'resolution-markers = ["x; --hash"]')
    assert lock_of(uv_lock=text) == ([], "")
