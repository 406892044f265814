"""`cooperbench author pack`: a dataset to share, with checksums and a README with statistics."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from cooperbench._version import __version__
from cooperbench.author.languages.python import CONSTRAINTS
from cooperbench.author.secret_search import find_secrets
from cooperbench.author.task_files import BUNDLE
from cooperbench.author.task_info import FILE_NAME as INFO_FILE
from cooperbench.author.task_info import TaskInfo, read_task_info, write_task_info
from cooperbench.dataset.coupling import COUPLINGS, UNKNOWN, CouplingReader
from cooperbench.dataset.discovery import is_demo_task
from cooperbench.dataset.golden_groups import FILE_NAME as GROUPS_FILE
from cooperbench.dataset.golden_groups import unsolvable_reason
from cooperbench.dataset.manifest import README, DatasetManifest, write_manifest
from cooperbench.errors import UserError
from cooperbench.models import Feature, Task
from cooperbench.storage import read_bytes, write_bytes, write_text
from cooperbench.temporary import owned_prefix
from cooperbench.text import names_for_error, plural

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")


@dataclass(frozen=True)
class PackedDataset:
    """A dataset that was packed."""

    path: Path
    manifest: DatasetManifest


def pack_tasks(tasks: Sequence[Task], dest: Path, name: str = "") -> PackedDataset:
    """Write tasks as a dataset to share.

    Args:
        tasks: The tasks.
        dest: A folder that does not exist, or a `.tar.gz`.
        name: The name of the dataset; by default that of `dest`.

    Raises:
        UserError: `dest` exists, or a task is not ready to be shared.
    """
    problems = [problem for task in tasks for problem in _problems_of(task)]
    if problems:
        raise UserError(f"not ready to be shared: {problems[0]}{_others(problems)}")
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise UserError(f"{dest} exists: name a new folder or file")
    archive_suffix = next((end for end in ARCHIVE_SUFFIXES if dest.name.endswith(end)), "")
    name = name or dest.name.removesuffix(archive_suffix)
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=owned_prefix("pack")) as scratch:
            folder = Path(scratch) / "dataset"
            folder.mkdir()
            for task in tasks:
                _copy_task(task, folder / task.repo / task.path.name)
            manifest = write_manifest(folder, name, __version__)
            write_text(folder / README, make_readme(tasks, manifest))
            if archive_suffix:
                write_bytes(dest, _make_archive(folder, name))
            else:
                shutil.copytree(folder, dest, dirs_exist_ok=True)
    except OSError as error:
        raise UserError(f"{dest} cannot be written: {error.strerror}") from error
    return PackedDataset(dest, manifest)


def _others(problems: Sequence[str]) -> str:
    return f" (and {plural(len(problems) - 1, 'other problem')})" if len(problems) > 1 else ""


def _problems_of(task: Task) -> list[str]:
    """Return why a task cannot be shared yet."""
    if is_demo_task(task):
        return [f"{task.label} is a task of the demo"]
    info = read_task_info(task)
    problems = []
    if len(task.feature_ids) < 2:
        problems.append(f"{task.label} has {plural(len(task.feature_ids), 'feature')}")
    drafts = [str(entry.feature_id) for entry in info.features if entry.is_draft]
    if drafts:
        numbers = ",".join(drafts)
        problems.append(
            f"{task.label} has drafts; read them, then cooperbench author accept"
            f" {task.label} {numbers}"
        )
    if not info.license:
        problems.append(f"{task.label} records no license (author check --fix, or author.json)")
    for path in _files_of(task):
        text = (read_bytes(path, follow_link=True) or b"").decode("utf-8", "replace")
        findings = [] if path.name.endswith(".bundle") else find_secrets(text)
        if findings:
            problems.append(f"{path.relative_to(task.path)} of {task.label}: {findings[0]}")
    return problems


def _files_of(task: Task) -> list[Path]:
    """Return the files of a task that are shared."""
    paths = [task.dockerfile, task.setup_script, task.runner_script, task.run_tests_script]
    paths += [task.combined_patch, task.path / GROUPS_FILE]
    paths += [task.path / BUNDLE, task.path / CONSTRAINTS]
    for feature in task.features:
        paths += _files_of_feature(feature)
    return [path for path in paths if path.is_file()]


def _files_of_feature(feature: Feature) -> list[Path]:
    return [feature.description, feature.patch, feature.tests]


def _copy_task(task: Task, folder: Path) -> None:
    for path in _files_of(task):
        target = folder / path.relative_to(task.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.suffix == ".sh" else 0o644)
    # The clone is a path on the author's machine.
    write_task_info(folder, msgspec.structs.replace(read_task_info(task), clone=""))
    assert (folder / INFO_FILE).is_file()


def _make_archive(folder: Path, name: str) -> bytes:
    """Return a .tar.gz of a folder, the same for the same files."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
                member.size = path.stat().st_size
                member.mode = path.stat().st_mode & 0o777
                with path.open("rb") as file:
                    tar.addfile(member, file)
    return buffer.getvalue()


def make_readme(tasks: Sequence[Task], manifest: DatasetManifest) -> str:
    """Return the README of a dataset: what is in it, and how it is used."""
    reader = CouplingReader()
    counts: Counter[str] = Counter()
    unsolvable = 0
    rows = []
    for task in tasks:
        info = read_task_info(task)
        for pair in task.pairs:
            counts[reader.coupling_of(pair) or UNKNOWN] += 1
            if unsolvable_reason(pair) is not None:
                unsolvable += 1
        rows.append(_row_of(task, info))
    features = sum(len(task.feature_ids) for task in tasks)
    repositories = len({task.repo for task in tasks})
    sizes = (
        plural(repositories, "repository", "repositories"),
        plural(len(tasks), "task"),
        plural(features, "feature"),
        plural(counts.total(), "pair"),
    )
    lines = [
        f"# {manifest.name}",
        "",
        f"A dataset for CooperBench: {', '.join(sizes)}.",
        "",
        f"Checksum: `{manifest.sha256}`",
        "",
        "```console",
        f"$ cooperbench prepare --from FOLDER_OR_URL#sha256={manifest.sha256}",
        "$ cooperbench run -n first -a mini_swe_agent -m MODEL --backend local",
        "```",
        "",
        "| task | language | features | pairs | base commit | upstream | license |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "How closely the golden patches of each pair are coupled:",
        "",
        "| coupling | pairs | meaning |",
        "| --- | --- | --- |",
        *[f"| {name} | {counts[name]} | {meaning} |" for name, meaning in COUPLINGS.items()],
    ]
    if unsolvable:
        lines += ["", f"{plural(unsolvable, 'pair')} cannot be won and are left out of runs."]
    lines += ["", "`cooperbench images push` brings the images of the tasks to your registry.", ""]
    return "\n".join(lines)


def _row_of(task: Task, info: TaskInfo) -> str:
    cells = (
        task.label,
        f"{info.language}, {info.framework}",
        str(len(task.feature_ids)),
        str(len(task.pairs)),
        info.upstream_commit[:12],
        info.upstream or "–",
        info.license or "–",
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def find_repeated(tasks: Sequence[Task]) -> str:
    """Return the labels that several of the tasks have; empty if there are none."""
    counts = Counter(task.label for task in tasks)
    repeated = [label for label, count in counts.items() if count > 1]
    return names_for_error(repeated) if repeated else ""
