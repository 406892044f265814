#!/bin/bash
# Makes the repository of this task at its base commit: setup.sh [DEST]
#
# It needs bash, git (2.30 or newer) and the folder base/ beside it; no network and no home. The commit is the same wherever
# it is made, since nothing of this machine or its user goes into it.
set -euo pipefail

BASE_COMMIT=050b22cca767f43a7f4794cb23800ae8f1731165
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DEST=${1:-/workspace/repo}

fail() {
    echo "setup.sh: $*" >&2
    exit 1
}

for name in "${!GIT_@}"; do unset "$name"; done
export HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_DEFAULT_HASH=sha1 LC_ALL=C
export GIT_AUTHOR_NAME=CooperBench GIT_AUTHOR_EMAIL=demo@cooperbench.invalid GIT_AUTHOR_DATE='2024-01-15T12:00:00 +0000'
export GIT_COMMITTER_NAME=CooperBench GIT_COMMITTER_EMAIL=demo@cooperbench.invalid GIT_COMMITTER_DATE='2024-01-15T12:00:00 +0000'

in_repo() {
    git -C "$DEST" -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false \
        -c core.fileMode=false -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null \
        -c commit.gpgSign=false -c gc.auto=0 "$@"
}

[ -d "$HERE/base" ] || fail "there is no folder $HERE/base"
mkdir -p "$DEST"
[ -z "$(ls -A "$DEST")" ] || fail "$DEST is not empty"

cp -R "$HERE/base/." "$DEST/"
# Installers change modes and compile what they find.
find "$DEST" -type d -exec chmod 755 {} +
find "$DEST" -type d -name __pycache__ -prune -exec rm -rf {} +
find "$DEST" -type f -exec chmod 644 {} +

in_repo init -q --template= -b main
in_repo add -A
in_repo commit -q --no-verify -m "sundial at the base commit"

found=$(in_repo rev-parse HEAD)
[ "$found" = "$BASE_COMMIT" ] || fail "the commit is $found, not $BASE_COMMIT: the files in $HERE/base are not the original ones"
