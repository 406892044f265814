from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.dataset.image_names import (
    DEFAULT_TEMPLATE,
    PUBLISHED_TEMPLATE,
    base_commit,
    image_name,
)
from cooperbench.errors import UserError
from cooperbench.models import Task

TASK = Task("llama_index_task", 17244, Path("unused"), (1, 2))
SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


@pytest.fixture(autouse=True)
def _no_template_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COOPERBENCH_IMAGE_TEMPLATE", raising=False)


def test_known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = "cooperbench/llama_index_task:task17244"
    published = "akhatua/cooperbench-llama-index:task17244"
    assert (
        image_name(TASK) == image_name(TASK, "seeds") == image_name(TASK, DEFAULT_TEMPLATE) == seeds
    )
    assert image_name(TASK, "published") == image_name(TASK, PUBLISHED_TEMPLATE) == published
    assert image_name(TASK, "mine/{short}-{task_id}") == "mine/llama-index-17244"
    monkeypatch.setenv("COOPERBENCH_IMAGE_TEMPLATE", "published")
    assert image_name(TASK) == published
    assert image_name(TASK, "seeds") == seeds


@pytest.mark.parametrize(
    "template",
    [
        "a/{name}",
        "a/{}",
        "a/{0}",
        "a/{repo.__class__}",
        "a/{repo[0]}",
        "a/{repo!r}",
        "a/{task_id:>9}",
        "a/{repo",
        "a}",
    ],
)
def test_wrong_templates(template: str) -> None:
    with pytest.raises(UserError, match=r"^image template ") as caught:
        image_name(TASK, template)
    assert "\n" not in str(caught.value)


def test_an_unknown_placeholder_is_told_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"\{name\}; available: \{repo\}, \{short\}, \{task_id\}.*seeds, published"
    ):
        image_name(TASK, "a/{name}")


def commit_of(folder: Path, setup: str | None = None, dockerfile: str | None = None) -> str | None:
    folder.mkdir(exist_ok=True)
    for name, text in (("setup.sh", setup), ("Dockerfile", dockerfile)):
        if text is not None:
            (folder / name).write_text(text)
    return base_commit(Task("alpha_task", 1, folder, (1, 2)))


@pytest.mark.parametrize(
    "script",
    [
        f"BASE_COMMIT={SHA}",
        f'BASE_COMMIT="{SHA}"  # the base',
        f"export BASE_COMMIT='{SHA}'",
        f"readonly base_commit={SHA}",
        f"BASE_COMMIT=${{1:-{SHA}}}",
        f': "${{BASE_COMMIT:={SHA}}}"',
        f"ARG BASE_COMMIT={SHA}",
        f"ENV COMMIT {SHA}",
        f"ENV A=1 COMMIT_SHA={SHA} B=2",
        f"BASE_COMMIT={SHA.upper()}",
        f"git checkout {SHA}",
        f"git -C /workspace/repo checkout --detach '{SHA}'",
        f"git checkout -q -b base {SHA} || exit 1",
        f"git reset --hard {SHA}",
        f"git switch --detach {SHA};",
        f"git fetch --depth 1 origin {SHA} && git checkout FETCH_HEAD",
        f"git fetch --depth 1000000 origin \\\n    {SHA}",
        f"git clone --revision={SHA} https://example.org/a/b.git",
        f"RUN git clone https://example.org/a/b.git repo && cd repo && git checkout {SHA} && make",
        f'RUN ["git", "checkout", "{SHA}"]',
        f'RUN ["git","checkout","{SHA}"]',
        f"(cd repo; git checkout {SHA})",
        f"if ! git cat-file -e x; then\n  git fetch origin {SHA}\nfi",
        f'commit={SHA}\ngit checkout "$commit"',
        f"REV_SHA={SHA}\ngit checkout ${{REV_SHA}}",
        f"TOOL_COMMIT={OTHER}\ngit checkout {SHA}",
        f"git checkout {OTHER}\nBASE_COMMIT={SHA}",
        f"# was: git checkout {OTHER}\ngit checkout {SHA}",
        f"RUN git clone x \\\n  # BASE_COMMIT={OTHER}\n  && git checkout {SHA}",
        f"git checkout deadbeef\ngit reset --hard {SHA}",
        f"curl -L https://example.org/a/b/archive/{SHA}.tar.gz | tar xz",
    ],
)
def test_spellings_of_the_base_commit(tmp_path: Path, script: str) -> None:
    assert commit_of(tmp_path, setup=f"#!/bin/bash\nset -e\n{script}\n") == SHA
    assert commit_of(tmp_path / "docker", dockerfile=f"FROM python\n{script}\n") == SHA


def test_abbreviations_where_the_context_is_clear(tmp_path: Path) -> None:
    assert commit_of(tmp_path, setup="git checkout abc1234") == "abc1234"
    assert commit_of(tmp_path, setup="BASE_COMMIT=abc12345") == "abc12345"


def test_setup_comes_first_then_the_dockerfile(tmp_path: Path) -> None:
    assert (
        commit_of(tmp_path, setup=f"git checkout {SHA}", dockerfile=f"ARG BASE_COMMIT={OTHER}")
        == SHA
    )
    assert commit_of(tmp_path, setup="./elsewhere", dockerfile=f"ARG BASE_COMMIT={SHA}") == SHA


@pytest.mark.parametrize(
    "script",
    [
        "",
        "git checkout main",
        f"# git checkout {SHA}",
        f"make; # git checkout {SHA}",
        f"sha256sum -c {SHA}{SHA[:24]}",
        f"IMAGE_SHA={SHA}{SHA[:24]}",
        "git clone --depth 2147483647 https://example.org/a/b.git",
        f"echo {SHA}",
        'git checkout "$UNKNOWN"',
    ],
)
def test_no_commit(tmp_path: Path, script: str) -> None:
    assert commit_of(tmp_path, setup=script) is None


def test_no_scripts(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None


words = st.sampled_from(
    ["git", "checkout", "BASE_COMMIT=", SHA, "${X:-", "}", "\\\n", ";", "#", '"', ":", " ", "\n"]
)


@given(st.lists(words | st.text(max_size=3)))
def test_no_script_crashes_it(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("wild")
    (folder / "setup.sh").write_bytes("".join(parts).encode("utf-8", "surrogatepass"))
    commit = base_commit(Task("alpha_task", 1, folder, (1, 2)))
    assert commit is None or 7 <= len(commit) <= 40
