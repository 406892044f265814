"""`cooperbench author check --fix`: repairs of a task that need no decision of a person."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cooperbench.author.detect import find_license_of
from cooperbench.author.split import find_tests_in, split_patch
from cooperbench.author.task_files import BUNDLE, open_base, write_combined_patch
from cooperbench.author.task_info import read_task_info, write_task_info
from cooperbench.errors import UserError
from cooperbench.eval.base_commit import Base
from cooperbench.eval.trees import TreeStore
from cooperbench.models import Feature, Task
from cooperbench.storage import read_bytes, write_bytes
from cooperbench.text import names_for_error


def fix_task(task: Task) -> list[str]:
    """Repair a task; return a line for each change."""
    changes = list(_fix_modes(task))
    if not (task.path / BUNDLE).is_file():
        return changes
    with open_base(task) as base:
        for feature in task.features:
            changes += _move_tests(feature, base)
        changes += _record_license(task, base)
        is_missing = not _combined_applies(task, base)
    if is_missing and task.features and write_combined_patch(task):
        changes.append("wrote combined.patch, the merge of all golden patches")
    return changes


def _fix_modes(task: Task) -> Iterator[str]:
    for path in (task.setup_script, task.runner_script, task.run_tests_script):
        if path.is_file() and not path.stat().st_mode & 0o111:
            path.chmod(0o755)
            yield f"made {path.name} executable"


def _move_tests(feature: Feature, base: Base) -> Iterator[str]:
    """Move changes of tests from the golden patch to the hidden tests."""
    golden = read_bytes(feature.patch, follow_link=True) or b""
    tests = read_bytes(feature.tests, follow_link=True) or b""
    with TreeStore(base) as store:
        misplaced = find_tests_in(golden, store)
        if not misplaced:
            return
        golden_tree = store.apply(golden).tree
        combined = store.apply(tests, golden_tree)
        if not combined.tree:
            return
        all_changes = store.patch_of(combined.tree)
    split = split_patch(base, all_changes)
    if split.problem or split.feature_patch == golden:
        return
    write_bytes(feature.patch, split.feature_patch)
    write_bytes(feature.tests, split.tests_patch)
    moved = names_for_error(misplaced, limit=3)
    yield f"feature {feature.feature_id}: moved {moved} from feature.patch to tests.patch"


def _record_license(task: Task, base: Base) -> Iterator[str]:
    try:
        info = read_task_info(task)
    except UserError:
        return
    if info.license:
        return
    license_name = find_license_of(base, info.subfolder)
    if license_name:
        write_task_info(task.path, msgspec.structs.replace(info, license=license_name))
        yield f"recorded the license: {license_name}"


def _combined_applies(task: Task, base: Base) -> bool:
    patch = read_bytes(task.combined_patch, follow_link=True)
    with TreeStore(base) as store:
        return store.apply(patch).status == "applied"
