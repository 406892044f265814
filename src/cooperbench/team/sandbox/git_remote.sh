# What the harness does to repositories in a sandbox: git_remote.sh COMMAND GIT_DIR ...
# Hooks and configuration of an agent, a user or an image stay out of it.
set -euo pipefail
command=$1 git_dir=$2
shift 2

clean_git() {
    env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 \
        GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 \
        git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 \
        -c maintenance.auto=false -c core.logAllRefUpdates=false -c core.fsync=none -c pack.threads=1 "$@"
}
there() { clean_git --git-dir="$git_dir" "$@"; }

case $command in
    install) # BASE_GIT COMMIT REPO OWN_ID AGENT_ID...: the bare repository, and the remote `team` in the agent's own one
        objects=$1/objects commit=$2 repo=$3 own=$4
        shift 4
        rm -rf -- "$git_dir"
        clean_git init -q --bare --template= --object-format=sha1 "$git_dir"
        mkdir -p -- "$git_dir/objects/info" "$git_dir/hooks"
        echo "$objects" >"$git_dir/objects/info/alternates"
        # Named here, so that a hooksPath of the image's own does not silence it.
        there config core.hooksPath "$git_dir/hooks"
        there config receive.autogc false
        there symbolic-ref HEAD refs/heads/main
        for branch in main "$@"; do
            there update-ref "refs/heads/$branch" "$commit"
            clean_git -C "$repo" update-ref "refs/remotes/team/$branch" "$commit"
        done
        clean_git -C "$repo" config remote.team.url "$git_dir"
        clean_git -C "$repo" config remote.team.fetch '+refs/heads/*:refs/remotes/team/*'
        clean_git -C "$repo" config user.name "$own"
        clean_git -C "$repo" config user.email "$own@cooperbench.invalid"
        # Else `git pull` of a branch that has moved on refuses to choose between merge and rebase.
        clean_git -C "$repo" config pull.rebase false
        ;;
    pack) # LIMIT OUTPUT COMMIT KNOWN...: what a commit has beyond the known ones; prints the size, LIMIT + 1 if it is larger
        limit=$1 output=$2 commit=$3
        shift 3
        mkdir -p -- "${output%/*}"
        {
            echo "$commit"
            for known; do
                if there cat-file -e "$known^{commit}" 2>/dev/null; then echo "^$known"; fi
            done
        } >"$output.revs"
        status=0
        there pack-objects -q --revs --thin --stdout --delta-base-offset <"$output.revs" |
            head -c "$((limit + 1))" >"$output" || status=${PIPESTATUS[0]}
        rm -f -- "$output.revs"
        size=$(wc -c <"$output")
        if ((status && size <= limit)); then exit 1; fi
        echo "$size"
        ;;
    take) # PACK BRANCH COMMIT: what a teammate has pushed
        # Strict: where the agent has lost what was brought before, this says so, and everything is brought again.
        there index-pack --stdin --fix-thin --strict <"$1" >/dev/null
        rm -f -- "$1"
        there update-ref "refs/heads/$2" "$3"
        ;;
esac
