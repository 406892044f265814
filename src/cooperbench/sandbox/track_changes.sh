# Prints which files of the work tree have changed since the last call; work_tree.sh comes before it.
# Usage: bash track_changes.sh REPO BASE_GIT_DIR STATE_DIR [TREE [all]]       one call at a time
#
# The first line is the git id of the tree as it is now. If that is not TREE, which an earlier call has printed, the
# output of `git diff-tree -z --raw --numstat` follows. The first call has no TREE. A call after one that failed has
# `all`: then the index may have more than TREE.
set -euo pipefail
repo=$1 base=$2 state=$3 before=${4-} mode=${5-}
use_work_tree "$repo" "$base" "$state"
[ "$before" ] || git read-tree HEAD
for _ in 1 2 3; do
    status=0
    # It names each file that it adds to the index or removes from it.
    git -c core.compression=0 add -A --ignore-errors --verbose "$repo" >"$state/changed" 2>"$state/errors" || status=$?
    # 1: some files cannot be read. Otherwise one vanished just now, and nothing has been recorded.
    [ "$status" -gt 1 ] || break
done
[ "$status" -le 1 ] || { tail -n 1 "$state/errors" >&2; exit 1; }
if [ "$before" ] && [ ! "$mode" ] && [ ! -s "$state/changed" ]; then
    echo "$before"
    exit
fi
tree=$(git write-tree)
echo "$tree"
if [ "$before" ] && [ "$before" != "$tree" ]; then
    git diff-tree -r -z --raw --numstat --no-renames --no-ext-diff --no-textconv "$before" "$tree"
fi
