#!/bin/bash
# Runs the tests of this task in a checkout anywhere: run_tests.sh REPO_PATH TESTS_PATCH [FEATURE_PATCH]
#
# The same as runner.sh beside it, which does the work: the checkout is reset before and after, so nothing in it is kept.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

absolute() {
    local folder
    folder=$(cd "$(dirname "$1")" && pwd) || return
    echo "$folder/$(basename "$1")"
}

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: run_tests.sh REPO_PATH TESTS_PATCH [FEATURE_PATCH]" >&2
    exit 2
fi
COOPERBENCH_REPO=$(cd "$1" && pwd)
export COOPERBENCH_REPO
tests=$(absolute "$2")
feature=${3:+$(absolute "$3")}
exec bash "$HERE/runner.sh" "$tests" ${feature:+"$feature"}
