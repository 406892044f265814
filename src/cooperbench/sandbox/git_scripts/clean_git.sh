# What scripts of the harness call git with, in any sandbox: hooks and configuration of an agent, a user or an image stay out.
set -euo pipefail

clean_git() {
    env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 \
        GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 \
        git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 \
        -c maintenance.auto=false -c core.logAllRefUpdates=false -c core.fsync=none -c pack.threads=1 "$@"
}

make_bare() { # GIT_DIR BASE_OBJECTS COMMIT BRANCH...: borrows the objects; every branch is at the commit
    local git_dir=$1 objects=$2 commit=$3 branch
    shift 3
    clean_git init -q --bare --template= --object-format=sha1 "$git_dir"
    mkdir -p -- "$git_dir/objects/info" "$git_dir/hooks"
    echo "$objects" >"$git_dir/objects/info/alternates"
    # Named here, so that a hooksPath of the image's own does not silence it.
    clean_git --git-dir="$git_dir" config core.hooksPath "$git_dir/hooks"
    clean_git --git-dir="$git_dir" config receive.autogc false
    clean_git --git-dir="$git_dir" symbolic-ref HEAD refs/heads/main
    for branch in main "$@"; do clean_git --git-dir="$git_dir" update-ref "refs/heads/$branch" "$commit"; done
}

