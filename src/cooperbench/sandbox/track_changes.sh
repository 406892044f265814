# Prints which files of the work tree have changed since the last call; work_tree.sh comes before it.
# Usage: bash track_changes.sh REPO BASE_GIT_DIR STATE_DIR MAX_BYTES [TREE]       one call at a time
#
# The first line is the git id of the tree as it is now. If that is not TREE, which the last call has printed, at most
# MAX_BYTES of `git diff-tree -z --raw --numstat` follow. The first call has no TREE.
set -euo pipefail
repo=$1 base=$2 state=$3 max_bytes=$4 before=${5-}
use_work_tree "$repo" "$base" "$state"
# A call that was killed has left it.
[ ! -e "$state/index.lock" ] || rm -f "$state/index.lock"
[ "$before" ] || git read-tree HEAD
for _ in 1 2 3; do
    status=0
    git -c core.compression=0 add -A --ignore-errors "$repo" 2>"$state/errors" || status=$?
    # 1: some files cannot be read. Otherwise one vanished just now, and nothing has been recorded.
    [ "$status" -gt 1 ] || break
done
[ "$status" -le 1 ] || { tail -n 1 "$state/errors" >&2; exit 1; }
tree=$(git write-tree)
echo "$tree"
[ "$before" ] && [ "$before" != "$tree" ] || exit 0
git diff-tree -r -z --raw --numstat --no-renames --no-ext-diff --no-textconv "$before" "$tree" >"$state/changes"
head -c "$max_bytes" "$state/changes"
