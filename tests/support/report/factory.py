"""Synthetic logs in the format that runs write, as many as wanted, without running anything.

`write_run` writes a whole experiment: every pair gets a `Kind` that says how it ended, and files that fit to it
(patches that really merge or really conflict, trajectories with messages in them, test outputs). Deterministic.
`test_factory.py` holds it against what a real run writes, so that it cannot drift away from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cooperbench.dataset.assignment import assign_in_order
from cooperbench.models import Pair, Task
from cooperbench.records.history import record_end, record_start
from cooperbench.records.result import RunConditions
from cooperbench.report.pairs import PairKey
from cooperbench.report.summary import save_summary
from cooperbench.runner.options import OPTIONS, RunOptions
from cooperbench.storage import ExperimentPaths, PairPaths, read_json
from tests.support.report.patches import BASE_PATH, feature_patch

if TYPE_CHECKING:
    from cooperbench.models import Setting

Kind = Literal[
    "passed", "union", "conflict", "capability", "integration",
    "unsound", "suspicious", "no_reference", "error", "eval_error", "unevaluated", "missing", "unstarted", "killed", "broken",
]  # fmt: skip
"""How a pair ended. Verdicts: passed; union (conflict, yet the union merge passes: not strict); conflict; capability (the
first agent fails alone); integration (all pass alone, the clean merge fails); unsound (passed, with tests of the last
feature that pass without it); suspicious (all pass, and so does the canary: failed). The rest has none: no reference, an error of ours in the run or in the evaluation, not evaluated, a folder without result, no folder at all (only summary.json knows of it), a
journal without an end, an eval.json that breaks off."""
_PASSING: tuple[Kind, ...] = ("passed", "union", "unsound", "suspicious")
SUSPICIOUS = [
    {
        "reason": "test_process",
        "agent": "agent1",
        "path": "src/app.py",
        "line": 3,
        "text": "os._exit(0)",
    },
    {"reason": "canary", "feature": 2},
]
Layout = Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]
"""Pairs by repository and task."""
KindOf = Callable[[PairKey], Kind]

START = datetime(2026, 3, 4, 10, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Talk:
    """A message to be: who (1 or 2) says what to the other after how many steps."""

    sender: int
    step: int
    text: str


TALK = (
    Talk(1, 1, f"Plan: I will change part_3 in {BASE_PATH}. I won't touch part_17. Which function do you change?"),
    Talk(2, 1, f"I will change part_17 in {BASE_PATH} only."),
    Talk(2, 2, "Do you add imports at the top of the file?"),
    Talk(1, 3, "No imports needed."),
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """What all pairs of a run have in common."""

    agents: tuple[str, ...] = ("mini_swe_agent", "mini_swe_agent")
    models: tuple[str | None, ...] = ("gpt-4o", "gpt-4o")
    steps: int = 4
    """Of each agent."""
    talk: tuple[Talk, ...] = TALK
    observation: str = "total 8\n-rw-r--r-- 1 agent agent 4096 app.py\n"
    thought: str = "I look at the file first."
    cost: float = 0.25
    """Of each agent."""
    bare: bool = False
    """Only result.json and eval.json: much faster, for statistics over many pairs."""
    dataset: str = "dataset"
    dataset_revision: str | None = "1234567890abcdef"
    content_sha256: str = "2" * 64
    """Checksum of the dataset's files of every pair."""
    version: str = "0.1.0"
    agent_count: int | None = None
    """Number of agents, if it is not that of the features, which they have evenly in order."""
    split: str | None = None
    """A split that config.json names."""


def layout(
    repos: int = 2, tasks: int = 4, pairs: int = 12
) -> dict[str, dict[int, list[tuple[int, ...]]]]:
    """That many pairs, spread over tasks, and these over repositories; (12, 30, 652) is the public dataset's size."""
    made: dict[str, dict[int, list[tuple[int, ...]]]] = {}
    for place in range(tasks):
        size = pairs // tasks + (place < pairs % tasks)
        features = next(count for count in range(2, 100) if count * (count - 1) // 2 >= size)
        chosen = list(combinations(range(1, features + 1), 2))[:size]
        repo = made.setdefault(f"repo{place % repos + 1:02d}_task", {})
        repo[100 + place] = [*chosen]
    return made


def keys_of(pairs: Layout) -> list[PairKey]:
    return [
        PairKey(repo, task_id, tuple(features))
        for repo, tasks in sorted(pairs.items())
        for task_id, groups in sorted(tasks.items())
        for features in groups
    ]


def share(kinds: Mapping[Kind, float], seed: str = "") -> KindOf:
    """A kind for each pair, in about these shares, always the same for the same seed."""

    def kind_of(key: PairKey) -> Kind:
        place = fraction(f"{seed}{key}") * sum(kinds.values())
        for kind, weight in kinds.items():
            place -= weight
            if place < 0:
                return kind
        return next(iter(kinds))

    return kind_of


def fraction(text: str) -> float:
    """Deterministic, as good as random, in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def write_run(
    logs_dir: Path,
    name: str,
    pairs: Layout,
    kinds: KindOf | Kind = "passed",
    *,
    setting: Setting = "coop",
    style: Style | None = None,
) -> ExperimentPaths:
    """A whole experiment; a second call with the same name and the other setting adds to it."""
    paths = ExperimentPaths(logs_dir, name)
    look = style or Style()
    unstarted = _unstarted(paths)
    for key in keys_of(pairs):
        kind: Kind = kinds if isinstance(kinds, str) else kinds(key)
        if kind == "unstarted":
            unstarted.setdefault(setting, []).append(_task_pair(key))
            continue
        files = paths.pair_named(setting, key.repo, key.task_id, key.features)
        _PairWriter(name, key, setting, files, kind, look).write()
    requested = (read_json(paths.config) or {}).get("requested", {})
    for key in keys_of(pairs):
        folder = f"{setting}/{key.repo}/{key.task_id}/" + "_".join(f"f{n}" for n in key.features)
        requested[folder] = look.content_sha256
    config = config_record(name, setting, look)
    config["requested"] = requested
    config["invocations"][0]["pairs"] = len(keys_of(pairs))
    _write_json(paths.config, config)
    record_start(paths, last_call=1, call=1, config=paths.config.read_bytes())
    record_end(paths, 1)
    save_summary(paths, unstarted)
    return paths


def _task_pair(key: PairKey) -> Pair:
    return Pair(Task(key.repo, key.task_id, Path("dataset"), key.features), key.features)


def _unstarted(paths: ExperimentPaths) -> dict[Setting, list[Pair]]:
    """What an earlier call left out."""
    parts = (read_json(paths.summary) or {"settings": {}})["settings"]
    return {
        setting: [
            _task_pair(PairKey(line["repo"], line["task_id"], tuple(line["features"])))
            for line in part["results"]
            if line["state"] == "missing"
        ]
        for setting, part in parts.items()
    }


def _recorded(where: str) -> dict[str, Any]:
    """Options with their defaults, as a run records them."""
    known = OPTIONS
    return {
        one.name: None if one.default is MISSING else one.default
        for one in fields(RunOptions)
        if one.name in known and known[one.name].recorded == where
    }


def config_record(name: str, setting: Setting, style: Style) -> dict[str, Any]:
    return {
        "schema": "cooperbench.config/1",
        "run_name": name,
        "setting": setting,
        "agent": ",".join(dict.fromkeys(style.agents)),
        "model_name": ",".join(dict.fromkeys(model for model in style.models if model)) or None,
        "agent_config_sha256": None,
        **_recorded("identity"),
        "git_enabled": False,
        **({"agent_count": style.agent_count} if style.agent_count else {}),
        **({"split": style.split} if style.split else {}),
        "backend": "local",
        "prompts_sha256": None,
        "time_limit_seconds": 3600.0,
        "dataset": style.dataset,
        "dataset_revision": style.dataset_revision,
        "invocations": [
            {
                "time": _time(0),
                "version": style.version,
                "run_name": name,
                "reruns": 0,
                **_recorded("invocation"),
                "setting": setting,
            }
        ],
    }


class _PairWriter:
    """The folder of one pair."""

    def __init__(
        self,
        run_name: str,
        key: PairKey,
        setting: Setting,
        files: PairPaths,
        kind: Kind,
        style: Style,
    ) -> None:
        self.run_name, self.key, self.setting, self.files, self.kind = (
            run_name,
            key,
            setting,
            files,
            kind,
        )
        self.style = style if setting != "solo" else replace(style, talk=())
        agents = 1 if setting == "solo" else style.agent_count or len(key.features)
        self.shares = [list(share) for share in assign_in_order(key.features, agents)]
        self.agent_ids = (
            ["solo"] if setting == "solo" else [f"agent{n}" for n, _ in enumerate(self.shares, 1)]
        )
        # In one half of the patches agents work far apart, in the other half on the same lines.
        self.conflict = kind in ("conflict", "union")

    def write(self) -> None:
        self.files.folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "missing":
            return
        if self.kind == "error":
            _write_json(self.files.result, self._error("the sandbox did not start"))
            return
        if not self.style.bare:
            for place, agent_id in enumerate(self.agent_ids):
                self._write_agent(place, agent_id)
        if self.kind == "killed":
            return
        if len(self.agent_ids) > 1 and not self.style.bare:
            _write_json(self.files.conversation, self._conversation())
        _write_json(self.files.result, self._result())
        if self.kind == "unevaluated":
            return
        if self.kind == "eval_error":
            _write_json(self.files.evaluation, self._error("the sandbox was lost"))
            return
        if self.kind == "no_reference":
            _write_json(self.files.evaluation, self._no_reference())
            return
        evaluation = self._evaluation()
        _write_json(self.files.evaluation, evaluation)
        if self.kind == "broken":
            text = self.files.evaluation.read_text()
            self.files.evaluation.write_text(text[: len(text) // 2])
        if self.style.bare:
            return
        if len(self.agent_ids) > 1 and evaluation["merged"]["strategy"] != "none":
            self.files.merged_patch.write_bytes(self._merged_patch())
        self._write_outputs(evaluation)

    def _error(self, text: str) -> dict[str, Any]:
        return {
            "status": "error", "run_name": self.run_name, "repo": self.key.repo, "task_id": self.key.task_id,
            "features": list(self.key.features), "setting": self.setting, "error": text, "infrastructure": True,
            "ended_at": _time(60), "version": self.style.version,
        }  # fmt: skip

    def _no_reference(self) -> dict[str, Any]:
        feature, reason = self.key.features[-1], "ImportError in test_x"
        return {
            "schema": "cooperbench.eval/1", "status": "no_reference", "repo": self.key.repo, "task_id": self.key.task_id,
            "features": list(self.key.features), "setting": self.setting,
            "error": f"feature {feature}: the golden patch does not pass: {reason}",
            "no_reference": {str(feature): reason}, "eval_network": "auto",
        }  # fmt: skip

    def _features(self, place: int) -> list[int]:
        return self.shares[place]

    def _patch_with(self, features: Sequence[int]) -> bytes:
        numbers = [
            3 if self.conflict else 3 + 14 * self.key.features.index(one) for one in features
        ]
        return feature_patch(tuple(features), tuple(numbers))

    def _patch(self, place: int) -> bytes:
        return self._patch_with(self._features(place))

    def _merged_patch(self) -> bytes:
        return self._patch_with(self.key.features)

    def _write_agent(self, place: int, agent_id: str) -> None:
        files = self.files.agent(agent_id)
        entries = self._entries(place)
        files.journal.parent.mkdir(parents=True, exist_ok=True)
        files.log.write_text("".join(f"{one['timestamp']}  {one['action']}\n" for one in entries))
        if self.kind == "killed":
            lines = [json.dumps(entry) for entry in entries]
            # Killed in the middle of a line.
            files.journal.write_text("\n".join(lines) + '\n{"action": "run", "args": {"comm')
            return
        files.patch.write_bytes(self._patch(place))
        files.patch_link.symlink_to(f"../{files.patch.name}")
        account = self._account()
        _write_json(
            files.trajectory,
            {
                "schema": "cooperbench.trajectory/1", "agent_id": agent_id,
                "feature_id": self._features(place)[0], "feature_ids": self._features(place),
                "agent": self.style.agents[place], "agent_version": None, "model": self.style.models[place],
                "status": "submitted", "error": None, "sandbox_seconds": account["sandbox_seconds"], "start_time": _time(0), "end_time": _time(10 * self.style.steps + 10), "steps": entries,
                "token_usage": {
                    **{key: account[key] for key in ("prompt_tokens", "completion_tokens", "cached_tokens")},
                    "total_tokens": account["prompt_tokens"] + account["completion_tokens"],
                },
                **{key: account[key] for key in ("cost", "model_calls", "model_seconds", "unpriced_calls")},
            },
        )  # fmt: skip

    def _account(self) -> dict[str, float]:
        """What one agent used."""
        steps = self.style.steps
        return {
            "cost": self.style.cost, "model_calls": steps, "prompt_tokens": 1000 * steps,
            "completion_tokens": 100 * steps, "cached_tokens": 0, "model_seconds": 2.5 * steps, "unpriced_calls": 0,
            "sandbox_seconds": 0.05 * steps,
        }  # fmt: skip

    def _entries(self, place: int) -> list[dict[str, Any]]:
        """Ten seconds a step: the reply of the model, then its command, then what came in."""
        entries: list[dict[str, Any]] = []

        def add(
            second: float, action: str, args: dict[str, Any], observation: str = "", **more: Any
        ) -> None:
            record = {
                "action": action,
                "args": args,
                "observation": observation,
                "timestamp": _time(second),
            }
            entries.append(record | more)

        add(0, "tell", {"kind": "instance", "content": f"Add feature {self._features(place)}."})
        for step in range(1, self.style.steps + 1):
            second = 10 * step
            tokens = {"prompt_tokens": 1000, "completion_tokens": 100, "cached_tokens": 0}
            cost = self.style.cost / self.style.steps
            add(
                second,
                "reply",
                {"content": self.style.thought},
                tokens=tokens,
                cost=cost,
                model_seconds=2.5,
            )
            said = [
                talk for talk in self.style.talk if (talk.sender, talk.step) == (place + 1, step)
            ]
            ran = {"step": step, "returncode": 0, "timed_out": False, "duration_seconds": 0.05}
            command = f"sed -n '{step},{step + 20}p' {BASE_PATH}"
            observation = self.style.observation
            if said:
                partner = self.agent_ids[1 - place]
                heard = "\n".join(talk.text for talk in said)
                command = f"send_message {partner} <<'END'\n{heard}\nEND"
                observation = f"Sent to {partner}.\n"
            elif step == self.style.steps:
                command = f"git apply <<'END'\n{self._patch(place).decode()}END"
                observation = ""
            add(
                second + 3,
                "run",
                {"command": command, "timeout_seconds": 600.0},
                observation,
                **ran,
            )
            for sequence, talk in enumerate(self._talk(), 1):
                if talk.sender != place + 1 and talk.step == step:
                    sender = self.agent_ids[talk.sender - 1]
                    received = {"from": sender, "content": talk.text, "sequence": sequence}
                    add(second + 6, "receive_message", received)
        return entries

    def _talk(self) -> list[Talk]:
        return sorted(
            (talk for talk in self.style.talk if talk.step <= self.style.steps),
            key=lambda talk: (talk.step, talk.sender),
        )

    def _conversation(self) -> dict[str, Any]:
        return {
            "schema": "cooperbench.conversation/1",
            "messages": [
                {
                    "sequence": sequence,
                    "from": self.agent_ids[talk.sender - 1],
                    "to": self.agent_ids[2 - talk.sender],
                    "message": talk.text,
                    "timestamp": _time(10 * talk.step + 3),
                    "feature_id": self.key.features[talk.sender - 1],
                    "sender_step": talk.step,
                    "delivered_at": _time(10 * talk.step + 6),
                    "delivered_step": talk.step,
                    "delivered_by": "context",
                }
                for sequence, talk in enumerate(self._talk(), 1)
            ],
        }

    def _result(self) -> dict[str, Any]:
        seconds = 10.0 * self.style.steps + 10
        agents: dict[str, dict[str, Any]] = {}
        for place, agent_id in enumerate(self.agent_ids):
            patch = self._patch(place)
            agents[agent_id] = {
                "agent_id": agent_id, "feature_ids": self._features(place), "agent": self.style.agents[place],
                "agent_version": None, "model": self.style.models[place], "status": "submitted", "error": None, "steps": self.style.steps,
                **self._account(), "patch_bytes": len(patch), "patch_sha256": hashlib.sha256(patch).hexdigest(), "files_changed": [BASE_PATH], "started_at": _time(0),
                "ended_at": _time(seconds), "duration_seconds": seconds,
            }  # fmt: skip
        config = config_record(self.run_name, self.setting, self.style)
        return {
            "schema": "cooperbench.result/1", "status": "completed", "run_name": self.run_name,
            "repo": self.key.repo, "task_id": self.key.task_id, "features": list(self.key.features),
            "setting": self.setting, "agents": agents, "messages": len(self._talk()),
            **{key: value * len(agents) for key, value in self._account().items()}, "base_commit": "9" * 40, "backend": "local",
            "image": f"local/{self.key.repo}:task{self.key.task_id}", "image_digest": "sha256:" + "1" * 64, "attempt": 1, "earlier_attempts": [],
            "started_at": _time(0), "ended_at": _time(seconds), "duration_seconds": seconds, "error": None,
            "version": self.style.version, "dataset_sha256": self.style.content_sha256,
            "conditions": {name: config[name] for name in RunConditions.__struct_fields__ if name in config},
        }  # fmt: skip

    def _evaluation(self) -> dict[str, Any]:
        agents = {
            agent_id: {
                **_totals(self._features(place), success=not (place == 0 and self._fails_alone())),
                "apply_status": "applied", "dropped_files": [],
                "patch_sha256": hashlib.sha256(self._patch(place)).hexdigest(),
            }
            for place, agent_id in enumerate(self.agent_ids)
        }  # fmt: skip
        alone = all(agent["success"] for agent in agents.values())
        together = self.kind in _PASSING if self.setting != "solo" else alone
        overall = alone and together and self.kind != "suspicious"
        merged = {
            **_totals(self.key.features, success=together),
            "merge_conflict": self.conflict, "merge_status": "conflict" if self.conflict else "clean",
            "strategy": "union" if self.conflict else "plain",
            "conflicting_files": [BASE_PATH] if self.conflict else [], "detail": "",
        }  # fmt: skip
        # The public release's rule: after a conflict the first agent's patch alone, which has one feature.
        by_public_rule = together and not (self.conflict and len(self.agent_ids) > 1)
        merged_public = {
            "success": by_public_rule, "strategy": "first_agent" if self.conflict else "plain",
            "tests_passed": 7 if by_public_rule else 6, "tests_failed": 0 if by_public_rule else 1,
            "error": None if by_public_rule else "test_edge", "tested_features": list(self.key.features),
        }  # fmt: skip
        return {
            "schema": "cooperbench.eval/1", "status": "completed", "repo": self.key.repo,
            "task_id": self.key.task_id, "features": list(self.key.features), "setting": self.setting,
            **agents, "merged": merged, "merged_public": merged_public, "individual_success": alone, "merge_success": not self.conflict,
            "overall_success": overall, "overall_success_strict": overall and not self.conflict,
            "canary": self._confirmations(together=together), "review_notes": [],
            "dataset_sha256": self.style.content_sha256,
            "patches": {agent_id: agent["patch_sha256"] for agent_id, agent in agents.items()},
            "suspicious": SUSPICIOUS if self.kind == "suspicious" else [],
            "eval_network": "auto", "network": "none",
            "references": {
                str(feature): {
                    "success": True, "network": "none", "installed": False, "tests_passed": 7, "flaky_tests": [],
                    "error": None,
                }
                for feature in self.key.features
            },
            "unsound": [self.key.features[-1]] if self.kind == "unsound" else [],
            "key": hashlib.sha256(f"{self.key}".encode()).hexdigest(),
            "image": f"local/{self.key.repo}:task{self.key.task_id}", "image_digest": "sha256:" + "1" * 64,
            "test_timeout_seconds": 600, "started_at": _time(100), "duration_seconds": 4.5,
            "version": self.style.version,
        }  # fmt: skip

    def _confirmations(self, *, together: bool) -> dict[str, dict[str, Any]]:
        """Return a confirmation of each success, by patch and feature."""
        subjects = {
            agent_id: self._features(place) for place, agent_id in enumerate(self.agent_ids)
        }
        if self._fails_alone():
            del subjects[self.agent_ids[0]]
        if len(self.agent_ids) > 1 and together:
            subjects["merged"] = list(self.key.features)
        return {
            subject: {
                str(feature): {"outcome": "confirmed", "kind": "copies", "tests": 7, "tests_with_decoys": 7, "detail": None}
                for feature in features
            }
            for subject, features in subjects.items()
        }  # fmt: skip

    def _fails_alone(self) -> bool:
        return self.kind == "capability" or (self.setting == "solo" and self.kind not in _PASSING)

    def _write_outputs(self, evaluation: Mapping[str, Any]) -> None:
        subjects = [*self.agent_ids, *(["merged"] if len(self.agent_ids) > 1 else [])]
        for subject in subjects:
            for feature, run in evaluation[subject]["features"].items():
                path = self.files.test_output(subject, int(feature))
                path.parent.mkdir(exist_ok=True)
                failed = (
                    ""
                    if run["success"]
                    else f"FAILED tests/test_f{feature}.py::test_edge - AssertionError\n"
                )
                path.write_text(
                    f"{failed}{run['tests_failed']} failed, {run['tests_passed']} passed in 0.10s\n"
                )


def _totals(features: Sequence[int], *, success: bool) -> dict[str, Any]:
    runs: dict[str, dict[str, Any]] = {
        str(feature): {
            "success": success, "tests_passed": 7 if success else 6, "tests_failed": int(not success),
            "tests_skipped": 0, "framework": "pytest", "exit_code": int(not success), "timed_out": False, "flaky_failures": [],
            "missing_tests": [], "skipped_tests": [],
            "duration_seconds": 1.5, "error": None if success else "AssertionError in test_edge",
        }
        for feature in features
    }  # fmt: skip
    return {
        **{name: sum(run[name] for run in runs.values()) for name in ("tests_passed", "tests_failed", "tests_skipped")},
        "success": success, "error": None if success else "AssertionError in test_edge",
        "exit_code": int(not success), "duration_seconds": 1.5 * len(runs), "features": runs,
    }  # fmt: skip


def make_hostile(trajectory: Path) -> None:
    """Put values into a trajectory.json that JSON, protobuf or readers of times do not accept."""
    content = json.loads(trajectory.read_text())
    content["steps"][1]["args"]["content"] = "\ud800 <script>"
    content["steps"][1]["timestamp"] = "yesterday"
    content["steps"][2]["args"]["command"] = float("nan")
    content["start_time"] = ""
    content["status"] = "\udfff"
    trajectory.write_text(json.dumps(content))


def _time(seconds: float) -> str:
    moment = START + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Like storage.write_json, without syncing to disk: hundreds of pairs are written in a test."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
