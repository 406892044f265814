#!/bin/bash
# Runs the tests of this task: runner.sh TESTS [FEATURE]
#
# TESTS and FEATURE are names of patches in /patches. The repository in /workspace/repo is reset, FEATURE (none, or an empty file: no
# change) and then TESTS are applied, all tests run, and the repository is reset again. Exit codes: 0 all tests passed, 2 usage,
# 3 a patch does not apply, anything else: tests failed.
# For another place: COOPERBENCH_REPO and COOPERBENCH_PATCHES. Patches can also be given as absolute paths.
set -uo pipefail

REPO=${COOPERBENCH_REPO:-/workspace/repo}
PATCHES=${COOPERBENCH_PATCHES:-/patches}

fail() {
    echo "runner.sh: $2" >&2
    exit "$1"
}

in_repo() (
    for name in "${!GIT_@}"; do unset "$name"; done
    export HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
    exec git -C "$REPO" -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false \
        -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null -c gc.auto=0 "$@"
)

reset_repo() {
    in_repo reset -q --hard && in_repo clean -qffdx
}

patch_path() {
    case $1 in
        /*) echo "$1" ;;
        *) echo "$PATCHES/$1" ;;
    esac
}

apply_patch() {
    in_repo apply --whitespace=nowarn "$2" || fail 3 "the $1 patch does not apply: $2"
}

{ [ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ]; } || fail 2 "usage: runner.sh TESTS [FEATURE]"
tests=$(patch_path "$1")
feature=${2:+$(patch_path "$2")}
[ -s "$tests" ] || fail 2 "there is no tests patch $tests"
[ -z "$feature" ] || [ -f "$feature" ] || fail 2 "there is no feature patch $feature"
# A folder inside somebody else's repository must not reset that one.
top=$(in_repo rev-parse --show-toplevel) && [ "$top" = "$(cd "$REPO" && pwd -P)" ] || fail 2 "$REPO is not a git repository"

reset_repo || fail 2 "cannot reset $REPO"
trap 'code=$?; reset_repo >/dev/null 2>&1; exit $code' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
[ ! -s "$feature" ] || apply_patch feature "$feature"
apply_patch tests "$tests"

cd "$REPO" || exit 2
PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -v -s tests -t .
