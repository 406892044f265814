"""Files appear whole or not at all; names cannot leave logs/; attempts are kept; one runner at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cooperbench.errors import UserError
from cooperbench.models import Pair, Task
from cooperbench.storage import (
    MAX_FILE_BYTES,
    AgentPaths,
    ExperimentPaths,
    checked_run_name,
    open_without_links,
    read_bytes,
    read_json,
    read_regular_file,
    write_json,
)

if TYPE_CHECKING:
    from pathlib import Path


def make_pair(root: Path) -> Pair:
    return Pair(Task("alpha_task", 0, root, (2, 10)), (2, 10))


def test_paths_are_those_of_the_documentation(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path, "first").pair(make_pair(tmp_path), "coop")
    assert paths.result == tmp_path / "first/coop/alpha_task/0/f2_f10/result.json"
    assert (
        paths.agent("agent1").trajectory.relative_to(paths.folder).as_posix()
        == "agent1/trajectory.json"
    )


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"n": 1})
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    assert read_json(path) == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@given(text=st.text(st.characters(), max_size=50))
def test_any_text_survives_json(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    write_json(path, {"text": text})
    assert read_json(path) == {"text": text}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": 1', b"\xff\xfe", b"null"])
def test_what_is_no_whole_object_is_not_there(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    assert read_json(path) is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["fifo", "endless device", "terminal", "huge", "folder"])
def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "result.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(MAX_FILE_BYTES + 1)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "endless device" else "/dev/ptmx")
    assert read_json(path) is None
    assert read_json(path, follow_link=True) is None
    with pytest.raises(OSError, match=r"regular file|larger than 256 MiB"):
        read_regular_file(path, follow_link=True)


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    """Whoever made the run could have the user's files shown in a report, or overwritten."""
    secret = tmp_path / "secret.json"
    write_json(secret, {"key": "sk"})
    run = ExperimentPaths(tmp_path / "logs", "r")
    run.root.mkdir(parents=True)
    links = (run.config, run.lock_file, run.error_log, run.history)
    for link in links:
        link.symlink_to(secret)
        assert read_bytes(link) is None
    assert read_json(run.config) is None
    assert read_json(run.config, follow_link=True) == {"key": "sk"}
    with pytest.raises(UserError, match="cannot write to"), run.lock():
        pass
    with pytest.raises(OSError, match="symbolic links"):
        open_without_links(run.error_log, "a")
    assert read_json(secret) == {"key": "sk"}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "-n", ".hidden", "a b", "a\n", "ä", "x" * 121, "a\0"]
)
def test_names_that_could_leave_the_logs_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="experiment name"):
        checked_run_name(name)


@pytest.mark.parametrize(
    "name", ["a", "solo-msa-gpt-4o-lite", "x" * 120, "claude-sonnet-4.5", "run_1@home"]
)
def test_usual_names_are_taken(name: str) -> None:
    assert checked_run_name(name) == name


def test_earlier_attempts_are_kept_in_order(tmp_path: Path) -> None:
    experiment, pair = ExperimentPaths(tmp_path, "r"), make_pair(tmp_path)
    assert experiment.archive(pair, "coop") is None
    for attempt in (1, 2):
        folder = experiment.pair(pair, "coop").folder
        write_json(folder / "result.json", {"attempt": attempt})
        (folder / ".writing-1-ab-eval.json").write_text("{")
        kept = experiment.archive(pair, "coop")
        assert kept is not None
        assert kept.name == f"{attempt:03d}"
        assert [entry.name for entry in kept.iterdir()] == ["result.json"]
        assert read_json(kept / "result.json") == {"attempt": attempt}
        assert not folder.exists()


def test_the_patch_is_also_where_older_tools_look(tmp_path: Path) -> None:
    paths = AgentPaths(tmp_path, "agent1")
    paths.write_patch(b"one\r\n")
    paths.write_patch(b"two\xff\n")
    assert paths.patch.read_bytes() == b"two\xff\n"
    assert (tmp_path / "agent1" / "patch.diff").read_bytes() == b"two\xff\n"
    assert str(paths.patch_link.readlink()) == "../agent1.patch"


def test_a_second_runner_is_told_who_holds_the_experiment(tmp_path: Path) -> None:
    experiment = ExperimentPaths(tmp_path, "r")
    code = (
        "import sys\nfrom pathlib import Path\nfrom cooperbench.storage import ExperimentPaths\n"
        "with ExperimentPaths(Path(sys.argv[1]), 'r').lock():\n"
        "    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {other.pid}"), experiment.lock():
            pass
        other.communicate("\n", timeout=30)
    with experiment.lock():
        pass


def test_a_killed_holder_does_not_block(tmp_path: Path) -> None:
    experiment = ExperimentPaths(tmp_path, "r")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom cooperbench.storage import ExperimentPaths\n"
        "with ExperimentPaths(Path(sys.argv[1]), 'r').lock():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with experiment.lock():
        pass


@given(name=st.text(max_size=140))
def test_a_name_is_refused_or_stays_a_folder_of_the_logs(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    logs = tmp_path_factory.getbasetemp()
    try:
        root = ExperimentPaths(logs, name).root
    except UserError:
        return
    assert root.parent == logs
    assert root.name == name
