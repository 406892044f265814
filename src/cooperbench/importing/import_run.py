"""`import_run`: a folder of another program's results becomes a run under logs/."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cooperbench import records
from cooperbench._version import __version__
from cooperbench.bounded import UnreadableInput, call_bounded
from cooperbench.errors import UserError
from cooperbench.importing.pair import ImportedFiles, PairImport, import_pair
from cooperbench.importing.source import SourcePair, SourceRun, find_source_run
from cooperbench.importing.source_files import (
    PairFiles,
    SourceConfig,
    SourceResult,
    read_config,
    read_pair_files,
)
from cooperbench.importing.transcript import Transcript, read_header
from cooperbench.models import SETTINGS, Setting
from cooperbench.records.config import ImportSource, RunRecord
from cooperbench.records.history import record_end, record_start
from cooperbench.records.imported import ImportedPair, ImportRecord, RecordedVerdict
from cooperbench.report.summary import save_summary
from cooperbench.storage import ExperimentPaths, checked_run_name, utc_now, write_bytes
from cooperbench.temporary import is_abandoned, owned_prefix, remove_tree
from cooperbench.text import printable

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+@=-]+")
_PURPOSE = "import"
_SAFE_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Imported(NamedTuple):
    """The run that `import_run` has written."""

    name: str
    root: Path
    record: ImportRecord
    settings: dict[Setting, int]
    """Number of pairs by setting."""
    verdicts: list[RecordedVerdict]
    """The verdicts that came with the run."""


class _Pair(NamedTuple):
    """A pair of the source that is known well enough to be imported."""

    setting: Setting
    repo: str
    task_id: int
    features: tuple[int, ...]
    source: SourcePair
    files: PairFiles

    @property
    def identity(self) -> tuple[str, str, int, tuple[int, ...]]:
        """The values that no two pairs of a run have in common."""
        return self.setting, self.repo, self.task_id, self.features


def import_run(folder: Path, logs_dir: Path, name: str | None = None) -> Imported:
    """Write the results in a folder as a run; the run appears whole or not at all.

    Args:
        folder: The folder of one run in a layout of the public release or of the quick start.
        logs_dir: The folder of all runs.
        name: Name of the new run; by default that of the folder.

    Raises:
        UserError: The folder is not that of a run, or there is a run of this name.
    """
    source = find_source_run(folder)
    config = _read_config(source)
    run_name = checked_run_name(name or _name_of(source.folder))
    target = ExperimentPaths(logs_dir, run_name).root
    if target.exists():
        raise UserError(f"there is already a run {run_name!r} in {logs_dir}; choose another -n")
    pairs = list(_identify_pairs(source))
    if not pairs:
        reason = source.left_out[0] if source.left_out else "it has no results"
        raise UserError(f"nothing in {folder} can be imported: {reason}")
    with _temporary_logs(logs_dir) as temporary_dir:
        paths = ExperimentPaths(temporary_dir, run_name)
        imported = _write_run(paths, source, config, pairs)
        try:
            paths.root.rename(target)
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return imported._replace(root=target)


def _name_of(folder: Path) -> str:
    name = _NOT_IN_NAMES.sub("-", folder.absolute().resolve().name).strip("-._")
    return name[:120] or "imported"


@contextmanager
def _temporary_logs(logs_dir: Path) -> Iterator[Path]:
    """Make a folder in the logs folder, on the same file system, that is removed in the end."""
    try:
        logs_dir.mkdir(parents=True, exist_ok=True)
        for leftover in logs_dir.glob(f"cooperbench-{_PURPOSE}-*"):
            if is_abandoned(leftover):
                remove_tree(leftover)
        folder = Path(tempfile.mkdtemp(prefix=owned_prefix(_PURPOSE), dir=logs_dir))
    except OSError as error:
        raise UserError(f"cannot write to {logs_dir}: {error.strerror}; use --log-dir") from error
    try:
        yield folder
    finally:
        remove_tree(folder)


def _read_config(source: SourceRun) -> SourceConfig:
    try:
        config = call_bounded(read_config, source.folder / "config.json")
    except UnreadableInput as problem:
        config = SourceConfig(content=None, is_own=False, problem=f"config.json: {problem}")
    if config.is_own:
        raise UserError(
            f"{source.folder} is already a run in our records: use it with --log-dir, or copy it"
        )
    if config.problem:
        source.left_out.append(config.problem)
    return config


def _identify_pairs(source: SourceRun) -> Iterator[_Pair]:
    """Yield the pairs whose task and features are known, each once."""
    seen: dict[tuple[object, ...], str] = {}
    # If a pair is there twice, the newer layout with the setting in the path comes first.
    for pair in sorted(source.pairs, key=lambda pair: (pair.setting is None, pair.name)):
        files = _read_pair_files(pair)
        if files.is_own:
            source.left_out.append(f"{printable(pair.name)} is already in our records")
            continue
        identified = _identify(pair, files)
        if isinstance(identified, str):
            source.left_out.append(f"{printable(pair.name)}: {identified}")
            continue
        first = seen.setdefault(identified.identity, pair.name)
        if first != pair.name:
            text = f"{printable(pair.name)} is the same pair as {printable(first)}"
            source.left_out.append(f"{text}: not read")
            continue
        yield identified


def _read_pair_files(pair: SourcePair) -> PairFiles:
    try:
        return call_bounded(read_pair_files, pair.folder)
    except UnreadableInput as problem:
        text = f"result.json, eval.json and conversation.json cannot be read: {problem}"
        return PairFiles(result=None, verdict=None, messages=None, is_own=False, problems=[text])


def _identify(pair: SourcePair, files: PairFiles) -> _Pair | str:
    """Return a pair with its task, features and setting, or why they are not known."""
    result = files.result or SourceResult()
    headers: list[Transcript] = []
    if _needs_headers(pair, result):
        headers = list(_read_headers(pair.folder))
    repo, task_id, features = pair.repo, pair.task_id, pair.features
    if repo is None:
        repo, task_id = _only_task(result, headers)
        features = _features_of(result, headers)
    if repo is None or task_id is None:
        return "its files do not name one task: not read"
    if not _SAFE_REPO.fullmatch(repo) or task_id < 0:
        return f"{repo!r} is not the name of a repository: not read"
    if not features:
        return "its files do not say which features it has: not read"
    setting = pair.setting or _setting_of(pair, result, headers)
    return _Pair(setting, repo, task_id, features, pair, files)


def _needs_headers(pair: SourcePair, result: SourceResult) -> bool:
    """Whether neither the path nor result.json says which task or setting a pair has."""
    is_setting_known = pair.setting is not None or result.setting in SETTINGS
    return pair.repo is None or not is_setting_known


def _only_task(
    result: SourceResult, headers: Sequence[Transcript]
) -> tuple[str | None, int | None]:
    """Return the task that all files of a pair name; None if they name none or several."""
    repos = {result.repo, *(header.repo for header in headers)} - {None}
    task_ids = {result.task_id, *(header.task_id for header in headers)} - {None}
    if len(repos) != 1 or len(task_ids) != 1:
        return None, None
    return repos.pop(), task_ids.pop()


def _read_headers(folder: Path) -> Iterator[Transcript]:
    for path in sorted(folder.glob("*_traj.json")):
        try:
            header = call_bounded(read_header, path)
        except UnreadableInput:
            continue
        if header is not None:
            yield header


def _features_of(result: SourceResult, headers: Sequence[Transcript]) -> tuple[int, ...]:
    features = set(result.features or ())
    for header in headers:
        features |= set(header.features or ())
        if header.feature_id is not None:
            features.add(header.feature_id)
    return tuple(sorted(feature for feature in features if feature >= 0))


def _setting_of(pair: SourcePair, result: SourceResult, headers: Sequence[Transcript]) -> Setting:
    """Return the setting of a pair whose path does not say."""
    for setting in SETTINGS:
        if result.setting == setting:
            return setting
    if pair.names & {"solo.patch", "solo_traj.json", "solo"}:
        return "solo"
    if any(header.team_role for header in headers):
        return "team"
    return "coop"


def _write_run(
    paths: ExperimentPaths, source: SourceRun, config: SourceConfig, pairs: Sequence[_Pair]
) -> Imported:
    record = _make_run_record(paths.run_name, source, config, pairs)
    content = records.encode(record)
    record_start(paths, last_call=0, call=0, config=content)
    write_bytes(paths.config, content)
    written = []
    for pair in pairs:
        pair_import = _make_pair_import(paths, config, pair)
        written.append((pair_import, import_pair(pair_import)))
    import_record = _make_import_record(paths, source, config, written)
    records.write(paths.import_record, import_record)
    record_end(paths, 0)
    save_summary(paths, {})
    verdicts = [pair.files.verdict for pair in pairs if pair.files.verdict is not None]
    counts = Counter(pair.setting for pair in pairs)
    settings = {setting: counts[setting] for setting in SETTINGS if counts[setting]}
    return Imported(paths.run_name, paths.root, import_record, settings, verdicts)


def _make_pair_import(paths: ExperimentPaths, config: SourceConfig, pair: _Pair) -> PairImport:
    result = pair.files.result or SourceResult()
    return PairImport(
        source=pair.source,
        setting=pair.setting,
        repo=pair.repo,
        task_id=pair.task_id,
        features=pair.features,
        files=pair.files,
        agent=result.agent_framework or config.text("agent_framework"),
        model=result.model or config.text("model"),
        run_name=paths.run_name,
        target=paths.pair_named(pair.setting, pair.repo, pair.task_id, pair.features),
        problems=list(pair.files.problems),
    )


def _make_import_record(
    paths: ExperimentPaths,
    source: SourceRun,
    config: SourceConfig,
    written: Sequence[tuple[PairImport, ImportedFiles]],
) -> ImportRecord:
    missing_in_all = set(written[0][1].missing)
    for _, files in written:
        missing_in_all &= set(files.missing)
    lines = []
    for pair, files in written:
        line = ImportedPair(
            pair=pair.target.folder.relative_to(paths.root).as_posix(),
            source=pair.source.name,
            layout=pair.source.layout,
            missing=[name for name in files.missing if name not in missing_in_all],
            problems=pair.problems,
        )
        lines.append(line)
    return ImportRecord(
        source=source.folder.absolute().name,
        time=utc_now(),
        version=__version__,
        config=config.content,
        missing=[name for name in written[0][1].missing if name in missing_in_all],
        left_out=source.left_out,
        pairs=lines,
    )


def _make_run_record(
    run_name: str, source: SourceRun, config: SourceConfig, pairs: Sequence[_Pair]
) -> RunRecord:
    """Return config.json: what the source says, and null for all other choices."""
    results = [pair.files.result or SourceResult() for pair in pairs]
    frameworks = [result.agent_framework for result in results]
    layouts = sorted({pair.source.layout for pair in pairs})
    requested = {}
    for pair in pairs:
        files = ExperimentPaths(Path(), run_name).pair_named(
            pair.setting, pair.repo, pair.task_id, pair.features
        )
        requested[files.folder.relative_to(run_name).as_posix()] = ""
    return RunRecord(
        run_name=run_name,
        setting=pairs[-1].setting,
        agent=_only_value(config.text("agent_framework"), frameworks),
        model_name=_only_value(config.text("model"), [result.model for result in results]),
        agent_config_sha256=None,
        messaging_enabled=None,
        git_enabled=None,
        backend=None,
        network=None,
        eval_network=None,
        step_limit=None,
        cost_limit=None,
        time_limit_seconds=None,
        prompts_sha256=None,
        dataset=None,
        dataset_revision=None,
        imported=ImportSource(
            folder=source.folder.absolute().name,
            layouts=[*layouts],
            time=utc_now(),
            version=__version__,
        ),
        requested=requested,
        invocations=[],
    )


def _only_value(configured: str | None, recorded: Sequence[str | None]) -> str | None:
    """Return the value in config.json, or the one of all pairs; None if they differ."""
    if configured is not None:
        return configured
    values = {value for value in recorded if value}
    return values.pop() if len(values) == 1 else None
