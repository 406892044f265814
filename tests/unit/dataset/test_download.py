"""Downloads with the real huggingface_hub from a Hub of ours on loopback."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cooperbench.dataset.discovery import load_tasks
from cooperbench.dataset.download import MARKER, PreparedDataset, prepare_dataset
from cooperbench.errors import InfraError, UserError
from tests.support.dataset.factory import write_dataset
from tests.support.dataset.hub_server import DATASET_ID, Hub, files_of, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = "alpha_task/task1/feature1/feature.patch"
"""The last file that the Hub lists."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    source = write_dataset(tmp_path / "source", {"alpha_task": {0: [1, 2], 1: [1, 2, 10]}})
    files = files_of(source) | {"README.md": b"hello\n"}
    del files[LARGE]
    hub = Hub(large_files={LARGE})
    hub.add_commit({**files, LARGE: b"diff\n" * 60_000})
    with serving(hub):
        yield hub


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "home" / "dataset"


def prepare(
    hub: Hub, dest: Path, *, revision: str | None = None, force: bool = False
) -> PreparedDataset:
    return prepare_dataset(
        dest, dataset_id=DATASET_ID, revision=revision, force=force, endpoint=hub.endpoint
    )


def newer_commit(hub: Hub) -> str:
    """Another commit on main: one file changed, one gone, one new."""
    files = dict(hub.commits[hub.branches["main"]])
    files["README.md"] = b"HELLO\n"
    del files["alpha_task/task0/combined.patch"]
    files["NEWS.md"] = b"news\n"
    return hub.add_commit(files)


def beside(dest: Path) -> list[str]:
    return sorted(path.name for path in dest.parent.iterdir()) if dest.parent.exists() else []


def test_brings_every_file_and_says_where_they_are_from(hub: Hub, dest: Path) -> None:
    commit = hub.branches["main"]
    prepared = prepare(hub, dest)
    assert prepared == PreparedDataset(dest, DATASET_ID, commit, tasks=2, pairs=4, downloaded=True)
    downloaded = files_of(dest)
    marker = json.loads(downloaded.pop(MARKER))
    assert downloaded == hub.commits[commit]
    assert (marker["dataset_id"], marker["revision"]) == (DATASET_ID, commit)
    assert marker["downloaded_at"].endswith("Z")
    assert beside(dest) == ["dataset"]
    assert os.access(load_tasks(dest)[0].runner_script, os.X_OK)


@pytest.mark.parametrize("revision", [None, "main", "abbreviated"])
def test_does_nothing_where_it_is_there(hub: Hub, dest: Path, revision: str | None) -> None:
    commit = prepare(hub, dest).revision
    hub.requests.clear()
    again = prepare(hub, dest, revision=commit[:8] if revision == "abbreviated" else revision)
    assert (again.downloaded, again.revision, again.pairs) == (False, commit, 4)
    assert hub.downloads() == []
    assert revision == "main" or not hub.requests
    assert beside(dest) == ["dataset"]


def test_another_revision_replaces_it(hub: Hub, dest: Path) -> None:
    first = prepare(hub, dest).revision
    second = newer_commit(hub)
    assert prepare(hub, dest).revision == first
    assert prepare(hub, dest, revision="main").revision == second
    downloaded = files_of(dest)
    del downloaded[MARKER]
    assert downloaded == hub.commits[second]
    assert prepare(hub, dest, revision=first).revision == first
    assert (dest / "README.md").read_bytes() == b"hello\n"
    assert beside(dest) == ["dataset", "dataset.replaced-1", "dataset.replaced-2"]


def test_broken_download_resumes_within_a_file(hub: Hub, dest: Path) -> None:
    # The library writes ten million bytes at a time, and continues after the last ones written.
    commit = hub.add_commit({**hub.commits[hub.branches["main"]], LARGE: os.urandom(12_000_000)})
    hub.cut_once[LARGE] = 11_000_000
    prepare(hub, dest)
    assert (dest / LARGE).read_bytes() == hub.commits[commit][LARGE]
    ranges = [
        asked for method, path, asked in hub.requests if method == "GET" and path.endswith(LARGE)
    ]
    assert len(ranges) == 2
    assert ranges[0] == ""
    assert 10_000_000 <= int(ranges[1].removeprefix("bytes=").removesuffix("-")) <= 11_000_000


def test_an_interrupted_download_is_continued_by_the_next_run(hub: Hub, dest: Path) -> None:
    hub.status_of[LARGE] = 403
    with pytest.raises(UserError, match=r"not accessible \(status 403\)"):
        prepare(hub, dest)
    assert beside(dest) == [".dataset.partial"]
    finished = set(hub.downloads())
    assert finished
    hub.status_of.clear()
    hub.requests.clear()
    prepare(hub, dest)
    assert LARGE in hub.downloads()
    assert not finished & set(hub.downloads())
    assert beside(dest) == ["dataset"]


def test_a_killed_download_is_continued_by_the_next_run(hub: Hub, dest: Path) -> None:
    """SIGKILL in the middle of a file: the server breaks off, and the client dies while it waits to go on."""
    hub.cut_once[LARGE] = 1000
    code = (
        "import logging, os, sys, pathlib, huggingface_hub\n"
        "from cooperbench.dataset.download import prepare_dataset\n"
        "class Kill(logging.Handler):\n"
        "    def emit(self, record): os.kill(os.getpid(), 9)\n"
        "logging.getLogger('huggingface_hub').addHandler(Kill())\n"
        f"prepare_dataset(pathlib.Path(sys.argv[1]), dataset_id={DATASET_ID!r})\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(dest.parent / "hf")}
    killed = subprocess.run([sys.executable, "-c", code, str(dest)], env=environment, check=False)
    assert killed.returncode == -9
    assert not dest.exists()
    prepare(hub, dest)
    assert files_of(dest).keys() - {MARKER} == hub.commits[hub.branches["main"]].keys()


def test_force_with_a_failing_hub_keeps_the_old_one(hub: Hub, dest: Path) -> None:
    prepare(hub, dest)
    before = files_of(dest)
    hub.status_of_everything = 500
    with pytest.raises(InfraError, match=r"500 Internal Server Error|500 Server Error"):
        prepare(hub, dest, force=True)
    assert files_of(dest) == before
    hub.status_of_everything = None
    hub.status_of[LARGE] = 403
    with pytest.raises(UserError, match="403"):
        prepare(hub, dest, force=True)
    assert files_of(dest) == before


def test_force_replaces_and_keeps_what_was_there(hub: Hub, dest: Path) -> None:
    prepare(hub, dest)
    (dest / "mine.json").write_text("{}")
    kept = prepare(hub, dest, force=True).kept
    assert kept == dest.parent / "dataset.replaced-1"
    assert (kept / "mine.json").is_file()
    assert prepare(hub, dest, force=True).kept == dest.parent / "dataset.replaced-2"
    assert beside(dest) == ["dataset", "dataset.replaced-1", "dataset.replaced-2"]


def test_a_folder_of_somebody_else_is_not_touched_without_force(hub: Hub, dest: Path) -> None:
    dest.mkdir(parents=True)
    (dest / "mine.txt").write_text("mine")
    with pytest.raises(
        UserError, match=r"not made by `cooperbench prepare`.*--force.*--dataset-dir"
    ):
        prepare(hub, dest)
    assert files_of(dest) == {"mine.txt": b"mine"}
    kept = prepare(hub, dest, force=True).kept
    assert kept is not None
    assert files_of(kept) == {"mine.txt": b"mine"}


def test_an_empty_folder_and_a_link_are_fine(hub: Hub, dest: Path) -> None:
    real = dest.parent / "disk"
    real.mkdir(parents=True)
    dest.symlink_to(real)
    assert prepare(hub, dest).path == real
    assert dest.is_symlink()
    assert len(load_tasks(dest)) == 2


def test_another_dataset_is_not_replaced_without_force(hub: Hub, dest: Path) -> None:
    prepare(hub, dest)
    with pytest.raises(UserError, match=f"contains {DATASET_ID}, not other/one"):
        prepare_dataset(dest, dataset_id="other/one", endpoint=hub.endpoint)


def test_stale_files_of_another_revision_do_not_pass(hub: Hub, dest: Path) -> None:
    """The library takes a file that is there for the new one when the Hub does not answer for it."""
    hub.status_of[LARGE] = 403
    with pytest.raises(UserError):
        prepare(hub, dest)
    second = newer_commit(hub)
    hub.status_of = {"README.md": 403}
    with pytest.raises(UserError):
        prepare(hub, dest)
    hub.status_of.clear()
    prepare(hub, dest)
    downloaded = files_of(dest)
    del downloaded[MARKER]
    assert downloaded == hub.commits[second]


@pytest.mark.parametrize(
    ("dataset_id", "revision", "message"),
    [
        (DATASET_ID, "nope", r"does not exist.*status 404.*--revision"),
        (
            "somebody/else",
            None,
            "dataset somebody/else does not exist or is not accessible.*HF_TOKEN",
        ),
        ("not a name", None, "dataset not a name does not exist.*looks like owner/name"),
        ("../../etc", None, "dataset ../../etc does not exist.*looks like owner/name"),
    ],
)
def test_wrong_names_are_the_users(
    hub: Hub, dest: Path, dataset_id: str, revision: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        prepare_dataset(dest, dataset_id=dataset_id, revision=revision, endpoint=hub.endpoint)
    assert "\n" not in str(caught.value)
    assert beside(dest) == []


@pytest.mark.parametrize("status", [401, 403])
def test_no_access_is_the_users(hub: Hub, dest: Path, status: int) -> None:
    hub.status_of_everything = status
    with pytest.raises(UserError, match="HF_TOKEN"):
        prepare(hub, dest)


def test_no_network_is_one_line(dest: Path) -> None:
    with serving(Hub()) as gone:
        pass
    with pytest.raises(
        InfraError, match=r"cannot be downloaded: .*check network and disk"
    ) as caught:
        prepare(gone, dest)
    assert "\n" not in str(caught.value)


def test_a_repository_without_tasks_is_refused(hub: Hub, dest: Path) -> None:
    hub.add_commit({"README.md": b"nothing else\n"})
    with pytest.raises(UserError, match="contains no tasks; check --dataset-id and --revision"):
        prepare(hub, dest)
    assert not dest.exists()


@pytest.mark.parametrize("path", ["../outside.txt", "a/../../outside.txt", "/outside.txt"])
def test_files_outside_of_the_folder_are_refused(hub: Hub, dest: Path, path: str) -> None:
    hub.add_commit({**hub.commits[hub.branches["main"]], path: b"x"})
    with pytest.raises(UserError, match="files outside its folder"):
        prepare(hub, dest)
    assert hub.downloads() == []


def test_two_at_once_exclude_each_other(hub: Hub, dest: Path) -> None:
    staging = dest.parent / ".dataset.partial"
    staging.mkdir(parents=True)
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another `cooperbench prepare`"):
            prepare(hub, dest)
    finally:
        os.close(descriptor)
    assert prepare(hub, dest).downloaded


def test_places_that_cannot_be(hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place, message in [
        (Path("demo"), "is the dataset in the package"),
        (file, "was not made by"),
        (file / "below", "cannot write to"),
    ]:
        with pytest.raises(UserError, match=message):
            prepare(hub, place)


def test_without_the_extra_the_error_names_it(dest: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "sys.modules['huggingface_hub'] = None\n"
        "from cooperbench.dataset.download import prepare_dataset\n"
        "try:\n"
        "    prepare_dataset(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(dest)], check=True, capture_output=True, text=True
    )
    assert (
        done.stdout
        == "UserError downloading needs huggingface_hub: pip install 'cooperbench[hub]'\n"
    )
    assert beside(dest) == []
