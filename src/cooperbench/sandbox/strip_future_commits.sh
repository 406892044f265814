#!/usr/bin/env bash
# Removes from a repository all that is not reachable from HEAD, so that code under test cannot look up in later commits
# how upstream did it.
# Usage: strip_future_commits.sh REPO       prints `dropped` if there was anything; needs bash, coreutils and git >= 2.30
#
# HEAD, its ancestors, refs to them (`git describe` needs tags), what is staged, the work tree and the configuration
# stay. Other refs, reflogs, work trees, alternates and objects go; so in submodules. A repository that has no other
# objects is left as it is.
set -euo pipefail
shopt -s inherit_errexit 2>/dev/null || true
export LC_ALL=C

fixed_git() { # hooks and whatever else a configuration could run stay out of it
  env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null \
    GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 git -c safe.directory='*' -c core.hooksPath=/dev/null \
    -c core.fsmonitor=false -c pack.packSizeLimit=0 "$@"
}

drop() {
  local git_dir=$1 work=$1/cooperbench name file
  here() { fixed_git --git-dir="$git_dir" --work-tree=/ "$@"; }
  # Their indexes would count as this one's.
  rm -rf -- "$git_dir/worktrees"
  mkdir -- "$work"
  here for-each-ref --format='%(refname)' >"$work/refs"
  here for-each-ref --format='%(refname)' --merged=HEAD >"$work/kept"
  { echo HEAD; cat -- "$work/kept"; } |
    here rev-list --objects --indexed-objects --missing=allow-promisor --stdin >"$work/wanted"
  here cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u >"$work/present"
  if ! cut -d ' ' -f 1 -- "$work/wanted" | sort -u | cmp -s - "$work/present"; then
    name=$(here pack-objects -q --delta-base-offset "$work/pack" <"$work/wanted")
    # A partial clone stays one.
    ! compgen -G "$git_dir/objects/pack/*.promisor" >/dev/null || touch -- "$work/pack-$name.promisor"
    comm -23 "$work/refs" "$work/kept" | sed 's/^/delete /' | here update-ref --no-deref --stdin
    rm -rf -- "$git_dir/logs" "$git_dir"/*_HEAD
    find "$git_dir/objects/" -mindepth 1 ! '(' -type d -name pack ')' -delete
    mv -- "$work"/pack-* "$git_dir/objects/pack/"
    [[ ! -e $git_dir/shallow ]] || here prune --expire=now
    for file in "$git_dir"/objects/pack/* "$git_dir"/{packed-refs,shallow}; do
      [[ ! -e $file ]] || chown --reference="$git_dir/HEAD" -- "$file"
    done
    echo dropped
  fi
  rm -rf -- "$work"
}

has_commit() { fixed_git --git-dir="$1" --work-tree=/ rev-parse -q --verify 'HEAD^{commit}' >/dev/null 2>&1; }

cd -- "$1"
git_dir=$(fixed_git rev-parse --absolute-git-dir)
[[ ! -e $git_dir/commondir ]] || { echo "$1 is a work tree of another repository" >&2; exit 1; }
has_commit "$git_dir" || { echo "$1 has no commit at HEAD" >&2; exit 1; }
drop "$git_dir"
# Submodules have theirs in there, those that were added by hand beside their files.
{
  find "$git_dir/modules" -name HEAD -print0 2>/dev/null || true
  fixed_git ls-files -s -z | sed -nz 's|^160000 [^\t]*\t\(.*\)|./\1/.git/HEAD|p'
} | while IFS= read -r -d '' head; do
  found=$(realpath -- "${head%/HEAD}" 2>/dev/null) || continue
  if [[ -d $found/objects ]] && has_commit "$found"; then drop "$found"; fi
done
