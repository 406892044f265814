# Lists the files that differ from the base commit: a line `MODE BLOB STATUS<TAB>PATH` each.
# Usage: bash changed_files.sh REPO BASE_GIT_DIR STATE_DIR       in the agent's sandbox
#
# It changes nothing in REPO. STATE_DIR keeps an index, so that unchanged files are not read again. Repositories inside
# the repository are left out: their commits have times.
set -euo pipefail
repo=$1 base=$2 state=$3
unset LD_PRELOAD LD_LIBRARY_PATH
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p "$state/objects"
export GIT_DIR="$base" GIT_WORK_TREE="$repo" GIT_INDEX_FILE="$state/index"
export GIT_OBJECT_DIRECTORY="$state/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$base/objects"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME="$state" LC_ALL=C
git() {
    command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false -c core.safecrlf=false \
        -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null -c core.bare=false -c core.fileMode=true \
        -c core.quotePath=true -c core.untrackedCache=false -c safe.directory='*' "$@"
}
[ -f "$state/index" ] || git read-tree HEAD
git add -A --ignore-errors "$repo" 2>/dev/null || true
git diff-index --cached --no-renames --full-index HEAD | grep -v '^:[0-7]* 160000 ' | cut -d' ' -f2,4- || true
