# Lists the files that differ from the base commit: a line `MODE BLOB STATUS<TAB>PATH` each; work_tree.sh comes before it.
# Usage: bash changed_files.sh REPO BASE_GIT_DIR STATE_DIR       in the agent's sandbox, one call at a time
#
# It changes nothing in REPO. STATE_DIR keeps an index, so that unchanged files are not read again. Repositories inside
# the repository are left out: their commits have times.
set -euo pipefail
repo=$1 base=$2 state=$3
use_work_tree "$repo" "$base" "$state"
[ -f "$state/index" ] || git read-tree HEAD
git add -A --ignore-errors "$repo" 2>/dev/null || true
git -c core.quotePath=true diff-index --cached --no-renames --full-index HEAD |
    grep -v '^:[0-7]* 160000 ' | cut -d' ' -f2,4- || true
