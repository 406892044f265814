# Removes from a repository what upstream did after the commit that is checked out: code under test could take it from there.
# Usage: forget_upstream.sh REPO RUNNER
#
# What stays: the files of this commit and of others before it that the runner names, the index, and all commits and tags
# up to it, so that `git describe` still works. Commit ids stay the same.
set -euo pipefail
cd -- "$1"
git() { command git -c safe.directory='*' -c core.fsmonitor=false -c pack.threads=1 "$@"; }
place=$(cd -- "$(git rev-parse --git-common-dir)" && pwd -P)
refs=$(git for-each-ref --merged HEAD --format='%(objectname) %(refname)')
trees=('HEAD^{tree}')
for name in $(grep -oE '\b[0-9a-f]{7,40}\b|\bHEAD[~^][0-9~^]*' -- "$2"); do
  if git merge-base --is-ancestor "$name" HEAD 2>/dev/null; then trees+=("$name^{tree}"); fi
done
new=$(mktemp -d "$place/kept-XXXXXX")
{
  git rev-list HEAD
  cut -d ' ' -f 1 <<<"$refs"
  git rev-list --objects --no-object-names "${trees[@]}"
  git ls-files -s | sed '/^160000/d' | cut -d ' ' -f 2
} | grep . | sort -u | git pack-objects --quiet "$new/pack" >/dev/null
rm -rf -- "$place"/objects/* "$place"/{refs,logs,worktrees}/* "$place"/*_HEAD "$place/packed-refs"
mkdir -p -- "$place/objects/pack" "$place/objects/info" "$place/refs/heads"
mv -- "$new"/* "$place/objects/pack"
rmdir -- "$new"
[ -z "$refs" ] || printf '%s\n' "$refs" >"$place/packed-refs"
