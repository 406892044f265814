#!/usr/bin/env bash
# Replaces a repository's history by one commit of its present state, so that no agent can look up the upstream
# solution and every sandbox of a task starts from the same commit id.
# Usage: strip_history.sh REPO BASE_GIT_DIR       prints the commit id
# Needs bash, coreutils and git >= 2.30.
#
# The commit contains the tracked files and the untracked ones that are not ignored, byte for byte as they are in the
# work tree. Conversions by .gitattributes are switched off, also in the new repository, so that it starts clean.
# The work tree does not change, except that the `.git` of submodules and nested checkouts is removed: their files
# become part of the commit. BASE_GIT_DIR becomes a bare repository with the same commit, for later comparisons.
# Hooks, filters, signing and configuration of the repository, the user and the system are not used.
set -euo pipefail
shopt -s inherit_errexit 2>/dev/null || true

repo=$(cd -- "$1" && pwd -P)
base_git=$2
work=$(mktemp -d "$(dirname -- "$repo")/.cooperbench-strip-XXXXXX")
trap 'rm -rf -- "$work"' EXIT

isolated_git() { # git with no other configuration than the repository's, and without anything that it could run
  env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent \
    GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_ATTR_NOSYSTEM=1 \
    GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1 GIT_CEILING_DIRECTORIES="$(dirname -- "$repo")" \
    GIT_AUTHOR_NAME=CooperBench GIT_AUTHOR_EMAIL=base@cooperbench.invalid GIT_AUTHOR_DATE='2000-01-01T00:00:00+0000' \
    GIT_COMMITTER_NAME=CooperBench GIT_COMMITTER_EMAIL=base@cooperbench.invalid \
    GIT_COMMITTER_DATE='2000-01-01T00:00:00+0000' \
    git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.excludesFile=/dev/null \
    -c core.attributesFile=/dev/null -c core.autocrlf=false -c core.eol=lf -c core.safecrlf=false \
    -c core.logAllRefUpdates=false -c core.untrackedCache=false -c core.splitIndex=false -c commit.gpgSign=false \
    -c gc.auto=0 -c maintenance.auto=false \
    -c pack.threads=1 -c index.threads=1 "$@"
}
old_git() { isolated_git -C "$repo" "$@"; }
new_git() { isolated_git --git-dir="$work/git" --work-tree="$repo" "$@"; }

[[ -e $repo/.git ]] || { echo "strip_history: $repo is not a git repository" >&2; exit 1; }

# Submodules and nested checkouts would become links to commits that do not exist here: take their files instead.
for ((depth = 0; depth < 10; depth++)); do
  nested=()
  while IFS= read -r -d '' entry; do
    [[ $entry == 160000\ * && -e $repo/${entry#*$'\t'}/.git ]] && nested+=("${entry#*$'\t'}")
  done < <(old_git ls-files -s -z)
  while IFS= read -r -d '' entry; do
    [[ $entry == */ && -e $repo/${entry}.git ]] && nested+=("${entry%/}")
  done < <(old_git ls-files -o --exclude-standard -z)
  ((${#nested[@]})) || break
  for entry in "${nested[@]}"; do
    # The submodule's entry in the index would hide its files from the list of untracked files.
    printf '%s\0' "$entry" | old_git update-index --force-remove -z --stdin
    rm -rf -- "$repo/$entry/.git"
  done
done

{ old_git ls-files -z; old_git ls-files -o --exclude-standard -z; } >"$work/all"
while IFS= read -r -d '' entry; do
  if [[ -L $repo/$entry || -f $repo/$entry ]]; then printf '%s\0' "$entry"; fi
done <"$work/all" >"$work/files"

isolated_git init -q --template= --object-format=sha1 "$work/init" >/dev/null
mv -- "$work/init/.git" "$work/git"
mkdir -p -- "$work/git/info"
exclude=$(old_git rev-parse --git-path info/exclude)
[[ $exclude == /* ]] || exclude=$repo/$exclude
if [[ -f $exclude ]]; then cp -- "$exclude" "$work/git/info/exclude"; fi
echo '* -text -ident !filter !working-tree-encoding' >"$work/git/info/attributes"
new_git symbolic-ref HEAD refs/heads/main
new_git update-index --add -z --stdin <"$work/files"
tree=$(new_git write-tree)
commit=$(new_git commit-tree -m Base "$tree")
new_git update-ref refs/heads/main "$commit"
new_git repack -a -d -q
new_git update-index -q --refresh || true

rm -rf -- "$base_git"
mkdir -p -- "$(dirname -- "$base_git")"
isolated_git init -q --bare --template= --object-format=sha1 "$base_git" >/dev/null
cp -R -- "$work/git/objects/." "$base_git/objects/"
mkdir -p -- "$base_git/info"
echo '* -text -ident !filter !working-tree-encoding !diff !merge' >"$base_git/info/attributes"
if [[ -f $work/git/info/exclude ]]; then cp -- "$work/git/info/exclude" "$base_git/info/exclude"; fi
isolated_git --git-dir="$base_git" symbolic-ref HEAD refs/heads/main
isolated_git --git-dir="$base_git" update-ref refs/heads/main "$commit"

mv -- "$repo/.git" "$work/old"
mv -- "$work/git" "$repo/.git"
echo "$commit"
