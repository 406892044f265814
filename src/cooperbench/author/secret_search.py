"""Finds secrets in texts that are about to be shared: keys of known forms, and the user's own."""

from __future__ import annotations

import re

from cooperbench.eval.base_commit import Base
from cooperbench.git import decode_path, run_git
from cooperbench.secrets import redact

_KEYS = {
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "a token of GitLab": r"\bglpat-[A-Za-z0-9_-]{20}",
    "a token of Slack": r"\bxox[abposr]-[A-Za-z0-9-]{20,}",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "a key of OpenAI or Anthropic": r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}",
    "a token of Hugging Face": r"\bhf_[A-Za-z]{34}\b",
    "a token of PyPI": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}",
    "a token of npm": r"\bnpm_[A-Za-z0-9]{36}\b",
    "a password in a URL": r"\b[a-z][a-z+]*://[^/\s:@]+:[^/\s:@${}<>*]{8,}@(?!example\b)",
}
_KEY_PATTERN = re.compile("|".join(f"({pattern})" for pattern in _KEYS.values()))
_SEARCHED_WORDS = (
    *("PRIVATE KEY-----", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "github_pat_"),
    *("glpat-", "xox", "AIza", "sk-", "hf_", "pypi-AgEI", "npm_"),
)
"""Words of which every key of a known form has one, for a quick search in many files."""
_MAX_LINES = 50_000
_MAX_LINE_LENGTH = 2_000


def find_secrets(text: str) -> list[str]:
    """Return what secrets a text contains, with line numbers and without the secrets."""
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY_PATTERN.search(line):
            name = list(_KEYS)[(match.lastindex or 1) - 1]
            findings.append(f"line {number} has {name}")
        elif redact(line) != line:
            findings.append(f"line {number} has a key of your environment")
    return findings


def find_secrets_in_base(base: Base) -> list[str]:
    """Return what secrets the files of a base commit contain, a line for each file."""
    patterns = []
    for word in _SEARCHED_WORDS:
        patterns += ["-e", word]
    argv = ("grep", "-I", "-z", "-F", *patterns, base.commit)
    output = run_git(*argv, git_dir=base.objects.parent, bounded=True).stdout
    findings = {}
    for line in output.split(b"\n", _MAX_LINES)[:_MAX_LINES]:
        commit_and_path, _, content = line.partition(b"\0")
        path = decode_path(commit_and_path.partition(b":")[2])
        if find_secrets(content.decode("utf-8", "replace")[:_MAX_LINE_LENGTH]):
            findings[path] = f"{path} has what looks like a key"
    return list(findings.values())
