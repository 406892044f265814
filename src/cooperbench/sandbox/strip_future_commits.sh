#!/usr/bin/env bash
# Removes from a repository all objects that are not reachable from HEAD, so that the code under test cannot look up
# the upstream solution in later commits.
# Usage: strip_future_commits.sh REPO       prints `dropped` if it removed anything
# Needs bash, coreutils and git >= 2.30.
#
# Kept: HEAD, its ancestors, refs to them (`git describe` needs tags), staged files, the work tree, the configuration.
# Removed: other refs, reflogs, linked work trees, alternates and all other objects. The same in submodules.
# A repository that has no other objects is not changed.
set -euo pipefail
shopt -s inherit_errexit 2>/dev/null || true
export LC_ALL=C

isolated_git() { # git without hooks and without anything else that a configuration could run
  env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null \
    GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 git -c safe.directory='*' -c core.hooksPath=/dev/null \
    -c core.fsmonitor=false -c pack.packSizeLimit=0 "$@"
}

git_in() { # GIT_DIR ARGUMENTS...
  isolated_git --git-dir="$1" --work-tree=/ "${@:2}"
}

has_commit() { # GIT_DIR
  git_in "$1" rev-parse -q --verify 'HEAD^{commit}' >/dev/null 2>&1
}

strip_repository() { # GIT_DIR
  local git_dir=$1 scratch=$1/cooperbench
  # The indexes of linked work trees would count as indexes of this one.
  rm -rf -- "$git_dir/worktrees"
  mkdir -- "$scratch"
  list_objects "$git_dir" "$scratch"
  if ! cmp -s -- "$scratch/reachable" "$scratch/present"; then
    replace_objects "$git_dir" "$scratch"
    echo dropped
  fi
  rm -rf -- "$scratch"
}

list_objects() { # GIT_DIR SCRATCH: writes refs, kept_refs, to_pack (ids and paths), reachable and present (ids)
  git_in "$1" for-each-ref --format='%(refname)' >"$2/refs"
  git_in "$1" for-each-ref --format='%(refname)' --merged=HEAD >"$2/kept_refs"
  { echo HEAD; cat -- "$2/kept_refs"; } |
    git_in "$1" rev-list --objects --indexed-objects --missing=allow-promisor --stdin >"$2/to_pack"
  cut -d ' ' -f 1 -- "$2/to_pack" | sort -u >"$2/reachable"
  git_in "$1" cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u >"$2/present"
}

replace_objects() { # GIT_DIR SCRATCH: packs what is reachable and removes everything else
  local git_dir=$1 scratch=$2 pack file
  pack=$(git_in "$git_dir" pack-objects -q --delta-base-offset "$scratch/pack" <"$scratch/to_pack")
  if compgen -G "$git_dir/objects/pack/*.promisor" >/dev/null; then
    # A partial clone remains one.
    touch -- "$scratch/pack-$pack.promisor"
  fi
  comm -23 "$scratch/refs" "$scratch/kept_refs" | sed 's/^/delete /' | git_in "$git_dir" update-ref --no-deref --stdin
  rm -rf -- "$git_dir/logs" "$git_dir"/*_HEAD
  find "$git_dir/objects/" -mindepth 1 ! '(' -type d -name pack ')' -delete
  mv -- "$scratch"/pack-* "$git_dir/objects/pack/"
  [[ ! -e $git_dir/shallow ]] || git_in "$git_dir" prune --expire=now
  for file in "$git_dir"/objects/pack/* "$git_dir"/{packed-refs,shallow}; do
    [[ ! -e $file ]] || chown --reference="$git_dir/HEAD" -- "$file"
  done
}

submodule_heads() { # GIT_DIR: prints paths of their HEAD files, each followed by a NUL byte
  # Most submodules have their git folder in the repository's; some have it beside their files.
  find "$1/modules" -name HEAD -print0 2>/dev/null || true
  isolated_git ls-files -s -z | sed -nz 's|^160000 [^\t]*\t\(.*\)|./\1/.git/HEAD|p'
}

cd -- "$1"
git_dir=$(isolated_git rev-parse --absolute-git-dir)
[[ ! -e $git_dir/commondir ]] || { echo "$1 is a work tree of another repository" >&2; exit 1; }
has_commit "$git_dir" || { echo "$1 has no commit at HEAD" >&2; exit 1; }
strip_repository "$git_dir"
submodule_heads "$git_dir" | while IFS= read -r -d '' head_file; do
  submodule_dir=$(realpath -- "${head_file%/HEAD}" 2>/dev/null) || continue
  if [[ -d $submodule_dir/objects ]] && has_commit "$submodule_dir"; then strip_repository "$submodule_dir"; fi
done
