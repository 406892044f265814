"""Agents that share a git remote: real sandboxes, plain git, and what is on record."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from cooperbench.eval import backends
from tests.integration.runner.test_plugged_in import TheirBackend
from tests.support.runner.helpers import Left, run_tiny
from tests.support.tiny import golden, write_script

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "git add -A && git commit -qm done"
PUSH = "git push team HEAD:{} 2>&1; echo code $?"
WAIT_FOR = "until git fetch -q team && [ $(git rev-parse team/{0}) != $(git rev-parse team/main) ]; do sleep 0.05; done"
WAIT_END = "until [ -e /cooperbench/team/finished/{} ]; do sleep 0.05; done"


def share(tmp_path: Path, first: list[str], second: list[str], **options: Any) -> Left:
    """A pair with git: each agent runs its commands."""
    steps = [[{"run": command} for command in commands] for commands in (first, second)]
    script = write_script(tmp_path / "script.yaml", {1: steps[0], 2: steps[1], 3: steps[1]})
    settings: dict[str, Any] = {"git_enabled": True, "auto_eval": False} | options
    return run_tiny(tmp_path, "scripted", agent_config=str(script), **settings)


def change(*feature_ids: int) -> str:
    return f"git apply - <<'PATCH'\n{golden(*feature_ids)}PATCH\n"


def cloned(left: Left, target: Path) -> dict[str, str]:
    """The branches of the final bundle."""
    subprocess.run(
        ["git", "clone", "-q", "--bare", left.folder / "team.bundle", target], check=True
    )
    lines = subprocess.run(
        ["git", "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads"],
        cwd=target, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    return dict(line.split(" ", 1) for line in lines)


def test_push_fetch_merge_and_the_same_tree_on_both_sides(tmp_path: Path) -> None:
    left = share(
        tmp_path,
        [change(1), COMMIT, PUSH.format("agent1"), WAIT_FOR.format("agent2"),
         "git merge -q -m both team/agent2 2>&1; echo code $?", PUSH.format("agent1"),
         "git log --format=%an -1 team/agent2"],
        [change(2), COMMIT, WAIT_FOR.format("agent1"), "git pull -q --no-edit team agent1; echo code $?", PUSH.format("agent2")],
        auto_eval=True,
    )  # fmt: skip
    seen = left.observations("agent1")
    assert "code 0" in seen[2]
    assert "code 0" in seen[4]
    assert seen[6].strip() == "agent2"
    assert "code 0" in left.observations("agent2")[3]
    assert "code 0" in left.observations("agent2")[4]
    assert left.patch("agent1") == left.patch("agent2")
    assert left.evaluation["merged"]["merge_status"] == "identical"
    assert left.evaluation["overall_success"] is True
    branches = cloned(left, tmp_path / "clone")
    assert sorted(branches) == ["agent1", "agent2", "main"]
    assert branches["main"] == left.result["base_commit"]
    git = left.result["git"]
    assert git["pushes"] == {"agent1": 2, "agent2": 1}
    assert git["commits"]["agent1"] == 1
    assert git["commits"]["agent2"] == 2
    assert git["bundle"] == "team.bundle"
    assert all(0 < git["bytes"][agent] < 10_000 for agent in ("agent1", "agent2"))
    assert not (left.folder / ".team.git").exists()


def test_only_the_own_branch_can_be_changed(tmp_path: Path) -> None:
    attempts = [
        "HEAD:main",
        "HEAD:agent2",
        "HEAD:refs/heads/topic",
        "v1",
        ":agent1",
        "+HEAD:agent2",
        "HEAD:refs/notes/x",
    ]
    commands = [change(1), COMMIT, "git tag v1", PUSH.format("agent1")]
    commands += [f"git push team {what} 2>&1; echo code $?" for what in attempts]
    # Around the hook: that changes only what this agent itself sees.
    commands += [
        "rm /cooperbench/team.git/hooks/update; git push -q team HEAD:agent2 HEAD:main 2>&1; echo code $?",
        "echo $(git rev-parse HEAD) >/cooperbench/team/push/direct; echo push direct >/cooperbench/team/bell; sleep 0.5; touch /tmp/x",
    ]
    left = share(
        tmp_path,
        commands,
        [WAIT_END.format("agent1"), "git fetch -q team; git rev-parse team/main team/agent2"],
    )
    seen = left.observations("agent1")
    assert "code 0" in seen[3]
    words = ["main stays", "agent2 is your teammate's branch", "none named topic", "only branches", "cannot be deleted",
             "agent2 is your teammate's branch", "only branches"]  # fmt: skip
    for word, observation in zip(words, seen[4:11], strict=True):
        assert f"remote: {word}" in observation or word in observation
        assert "code 1" in observation
    base = left.result["base_commit"]
    assert left.observations("agent2")[1].split() == [base, base]
    branches = cloned(left, tmp_path / "clone")
    assert branches["main"] == branches["agent2"] == base
    assert branches["agent1"] != base


def test_force_pushes_and_orphan_branches_are_carried(tmp_path: Path) -> None:
    left = share(
        tmp_path,
        ["echo one >one.txt", COMMIT, PUSH.format("agent1"), "git commit -q --amend -m again",
         PUSH.format("agent1"), PUSH.format("agent1 --force"), "git checkout -q --orphan fresh", "git commit -qm fresh",
         PUSH.format("agent1 --force"), "git rev-parse HEAD"],
        [WAIT_END.format("agent1"), "git fetch -q team; git rev-list --count team/agent1; git rev-parse team/agent1"],
    )  # fmt: skip
    seen = left.observations("agent1")
    assert "non-fast-forward" in seen[4]
    assert "code 0" in seen[5]
    assert "code 0" in seen[8]
    count, tip = left.observations("agent2")[1].split()
    assert (count, tip) == ("1", seen[9].strip())
    assert cloned(left, tmp_path / "clone")["agent1"] == tip


def test_push_after_a_teammate_finished_is_kept(tmp_path: Path) -> None:
    left = share(
        tmp_path,
        [WAIT_END.format("agent2"), change(1), COMMIT, PUSH.format("agent1"), "git rev-parse HEAD"],
        [],
    )
    seen = left.observations("agent1")
    assert "agent2 has finished" in seen[3]
    assert "code 0" in seen[3]
    assert cloned(left, tmp_path / "clone")["agent1"] == seen[4].strip()


def test_a_push_beyond_the_quota_is_refused_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cooperbench.team.git_remote.QUOTA_BYTES", 50_000)
    left = share(
        tmp_path,
        ["head -c 40000 /dev/urandom >a.bin", COMMIT, PUSH.format("agent1"), "git rev-parse HEAD",
         "head -c 40000 /dev/urandom >b.bin", COMMIT, PUSH.format("agent1"), "git fetch -q team; git rev-parse team/agent1"],
        [WAIT_END.format("agent1"), "git fetch -q team; git rev-parse team/agent1"],
    )  # fmt: skip
    seen = left.observations("agent1")
    assert "code 0" in seen[2]
    assert "code 1" in seen[6]
    assert "refused: too large" in seen[6]
    assert seen[7] == seen[3] == left.observations("agent2")[1]
    assert left.result["git"]["refused"]["agent1"] == 1
    assert "b.bin" in left.patch("agent1")


def test_a_large_push_comes_whole_and_the_remote_can_be_cloned(tmp_path: Path) -> None:
    big = "head -c 2000000 /dev/urandom >big.bin"
    left = share(
        tmp_path,
        [big, COMMIT, PUSH.format("agent1"), "sha256sum <big.bin"],
        [WAIT_END.format("agent1"), "git clone -q -b agent1 $(git remote get-url team) /tmp/clone; sha256sum </tmp/clone/big.bin"],
    )  # fmt: skip
    assert "code 0" in left.observations("agent1")[2]
    assert left.observations("agent1")[3] == left.observations("agent2")[1]
    assert left.result["git"]["bytes"]["agent1"] > 2_000_000


def test_nothing_that_an_agent_plants_runs_on_the_host(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    plant = f"""
        printf '#!/bin/sh\\ntouch {witness} 2>/dev/null || true\\n' >/tmp/evil; chmod +x /tmp/evil
        for hook in pre-receive post-receive post-update reference-transaction; do cp /tmp/evil /cooperbench/team.git/hooks/$hook; done
        cd /cooperbench/team.git; for key in core.fsmonitor core.sshCommand core.alternateRefsCommand uploadpack.packObjectsHook; do
            git config $key 'touch {witness}'; done; git config core.hooksPath /cooperbench/team.git/hooks"""
    modules = "printf '[submodule \"x\"]\\n path = x\\n url = ext::touch%% {0}\\n update = !touch {0}\\n' >.gitmodules"
    left = share(
        tmp_path,
        [
            plant,
            "echo good >good.txt",
            COMMIT,
            PUSH.format("agent1"),
            modules.format(witness),
            COMMIT,
            PUSH.format("agent1"),
            PUSH.format("agent1"),
        ],
        [],
    )
    seen = left.observations("agent1")
    assert "code 0" in seen[3]
    for refused in seen[6:8]:
        assert "code 1" in refused
        assert "gitmodules" in refused
    assert not witness.exists()


def test_rubbish_instead_of_a_push_breaks_nothing(tmp_path: Path) -> None:
    rubbish = """cd /cooperbench/team; for text in '' '--all' 'HEAD' $(printf '0%.0s' $(seq 40)) $(printf 'a%.0s' $(seq 40)); do
        name=r$RANDOM; printf '%s' "$text" >push/$name; echo "push $name" 1<>bell
        until [ -e responses/$name ]; do sleep 0.02; done; head -n 1 responses/$name; done"""
    blob = "echo text | git hash-object -w --stdin >/tmp/blob; git push team $(cat /tmp/blob):refs/heads/agent1 2>&1; echo code $?"
    broken = "rm -rf /cooperbench/team.git/objects; " + PUSH.format("agent1")
    left = share(tmp_path, [rubbish, change(1), COMMIT, blob, PUSH.format("agent1"), broken], [])
    seen = left.observations("agent1")
    assert seen[0].split() == ["1"] * 5
    assert "code 1" in seen[3]
    assert "code 0" in seen[4]
    assert "code 0" not in seen[5]
    assert left.result["git"]["pushes"]["agent1"] == 1


def test_what_a_teammate_lost_is_given_once_more(tmp_path: Path) -> None:
    lose = "rm -rf /cooperbench/team.git/objects/pack/* /cooperbench/team.git/objects/??; send_message agent1 lost"
    left = share(
        tmp_path,
        ["echo 1 >one.txt", COMMIT, PUSH.format("agent1"), "read_messages --all --wait 60",
         "echo 3 >three.txt", COMMIT, PUSH.format("agent1")],
        [WAIT_FOR.format("agent1"), lose,
         WAIT_END.format("agent1"), "git clone -q -b agent1 /cooperbench/team.git /tmp/all 2>&1; ls /tmp/all"],
    )  # fmt: skip
    assert "lost" in left.observations("agent1")[3]
    assert "could not" not in left.observations("agent1")[6]
    assert {"one.txt", "three.txt"} <= set(left.observations("agent2")[3].split())


def test_git_without_messages(tmp_path: Path) -> None:
    left = share(
        tmp_path,
        [change(1), COMMIT, PUSH.format("agent1"), "send_message agent2 hi; echo code $?"],
        [WAIT_FOR.format("agent1"), "git merge -q team/agent1 && cat app.txt"],
        messaging_enabled=False,
    )
    assert "code 127" in left.observations("agent1")[3]
    assert "feature 1\n" in left.observations("agent2")[1]
    assert not (left.folder / "conversation.json").exists()


def test_on_a_backend_that_has_only_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_DATASET", str(tmp_path / "data"))
    backends.register("theirs-with-git", TheirBackend)
    left = share(
        tmp_path,
        [change(1), COMMIT, PUSH.format("agent1"), "send_message --wait 60 agent2 pushed"],
        [WAIT_FOR.format("agent1"), "git merge -q team/agent1 && cat app.txt", "read_messages --all --wait 60", "send_message agent1 'got it'"],
        backend="theirs-with-git",
    )  # fmt: skip
    assert "code 0" in left.observations("agent1")[2]
    assert "got it" in left.observations("agent1")[3]
    assert "feature 1\n" in left.observations("agent2")[1]
    assert "From agent1:\npushed" in left.observations("agent2")[2]


def test_solo_says_so_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = run_tiny(tmp_path, "oracle", setting="solo", git_enabled=True, auto_eval=False)
    assert "--git is ignored in setting solo" in capsys.readouterr().out
    assert "git" not in left.result


def test_without_git_there_is_no_remote(tmp_path: Path) -> None:
    left = share(tmp_path, ["git remote; ls /cooperbench"], [], git_enabled=False)
    assert "team.git" not in left.observations()[0]
    assert "git" not in left.result
    assert not (left.folder / "team.bundle").exists()


def test_where_nobody_pushes_nothing_is_kept(tmp_path: Path) -> None:
    left = share(tmp_path, ["git remote -v"], [])
    assert "/cooperbench/team.git" in left.observations()[0]
    assert left.result["git"] == {
        key: {"agent1": 0, "agent2": 0} for key in ("pushes", "refused", "commits", "bytes")
    } | {"bundle": None}


def test_work_in_the_middle_of_a_conflict_is_handed_in_as_it_is(tmp_path: Path) -> None:
    line = "sed -i '3s/.*/{}/' app.txt"
    left = share(
        tmp_path,
        [
            line.format("mine"),
            COMMIT,
            WAIT_FOR.format("agent2"),
            "git merge team/agent2; echo code $?",
        ],
        [line.format("theirs"), COMMIT, PUSH.format("agent2")],
    )
    assert "code 1" in left.observations("agent1")[3]
    for part in ("+<<<<<<<", "+mine", "+theirs", "+>>>>>>>"):
        assert part in left.patch("agent1")
