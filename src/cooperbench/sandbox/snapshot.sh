# Writes the difference between the base commit and the work tree as a patch.
# Usage: bash snapshot.sh REPO BASE_GIT_DIR OUTPUT MAX_BYTES       in the agent's sandbox
#
# Untracked files are included, ignored ones are not. It uses its own index and object store: whatever the agent did to
# REPO/.git (commits, resets, hooks, config, deletion) does not matter.
set -euo pipefail
repo=$1 base=$2 output=$3 max_bytes=$4
unset LD_PRELOAD LD_LIBRARY_PATH
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
scratch=$(mktemp -d "${output%/*}/snapshot.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/objects"

# Git would treat a repository inside the repository as a submodule, but its files should be in the patch.
find "$repo" -mindepth 2 -name .git -prune -exec rm -rf {} + 2>/dev/null || true

export GIT_DIR="$base" GIT_WORK_TREE="$repo" GIT_INDEX_FILE="$scratch/index"
export GIT_OBJECT_DIRECTORY="$scratch/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$base/objects"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME="$scratch" LC_ALL=C
git() {
    command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false -c core.safecrlf=false \
        -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null -c core.bare=false -c core.fileMode=true \
        -c core.quotePath=false -c core.untrackedCache=false -c safe.directory='*' "$@"
}
git read-tree HEAD
git add -A --ignore-errors "$repo" || true
git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
    --src-prefix=a/ --dst-prefix=b/ HEAD >"$scratch/patch"
size=$(stat -c %s "$scratch/patch")
[ "$size" -le "$max_bytes" ] || { echo "it has $size bytes, more than $max_bytes" >&2; exit 1; }
rm -rf "$output"
mv -T "$scratch/patch" "$output"
