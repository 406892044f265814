# Writes the difference between the base commit and the work tree as a patch; work_tree.sh comes before it.
# Usage: bash snapshot.sh REPO BASE_GIT_DIR OUTPUT MAX_BYTES       in the agent's sandbox
set -euo pipefail
repo=$1 base=$2 output=$3 max_bytes=$4
scratch=$(mktemp -d "${output%/*}/snapshot.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Git would treat a repository inside the repository as a submodule, but its files should be in the patch.
find "$repo" -mindepth 2 -name .git -prune -exec rm -rf {} + 2>/dev/null || true

use_work_tree "$repo" "$base" "$scratch"
git read-tree HEAD
git add -A --ignore-errors "$repo" || true
git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
    --src-prefix=a/ --dst-prefix=b/ HEAD >"$scratch/patch"
size=$(stat -c %s "$scratch/patch")
[ "$size" -le "$max_bytes" ] || { echo "it has $size bytes, more than $max_bytes" >&2; exit 1; }
rm -rf "$output"
mv -T "$scratch/patch" "$output"
