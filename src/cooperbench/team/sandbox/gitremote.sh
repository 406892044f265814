# What the harness does to the team's repository in a sandbox; run by bash: gitremote.sh COMMAND TEAM_GIT ...
# Hooks and configuration of the agent, its user and its image stay out of it.
set -euo pipefail
command=$1 team_git=$2
shift 2

clean_git() {
    env -i PATH="$PATH" LC_ALL=C HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 \
        GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 \
        git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 \
        -c maintenance.auto=false -c core.logAllRefUpdates=false -c core.fsync=none -c pack.threads=1 "$@"
}
in_team() { clean_git --git-dir="$team_git" "$@"; }

case $command in
    install) # REPO BASE_GIT COMMIT OWN_ID AGENT_ID...: an empty repository that borrows the base commit
        repo=$1 base_git=$2 commit=$3 own=$4
        shift 4
        rm -rf -- "$team_git"
        clean_git init -q --bare --template= --object-format=sha1 "$team_git"
        mkdir -p -- "$team_git/objects/info" "$team_git/hooks"
        echo "$base_git/objects" >"$team_git/objects/info/alternates"
        # Named here, so that a hooksPath of the image's own does not silence it.
        in_team config core.hooksPath "$team_git/hooks"
        in_team config receive.autogc false
        in_team symbolic-ref HEAD refs/heads/main
        for branch in main "$@"; do
            in_team update-ref "refs/heads/$branch" "$commit"
            clean_git -C "$repo" update-ref "refs/remotes/team/$branch" "$commit"
        done
        clean_git -C "$repo" config remote.team.url "$team_git"
        clean_git -C "$repo" config remote.team.fetch '+refs/heads/*:refs/remotes/team/*'
        clean_git -C "$repo" config user.name "$own"
        clean_git -C "$repo" config user.email "$own@cooperbench.invalid"
        # Else `git pull` of a branch that has moved on refuses to choose between merge and rebase.
        clean_git -C "$repo" config pull.rebase false
        ;;
    pack) # COMMIT LIMIT OUTPUT KNOWN...: what COMMIT has beyond the KNOWN ones; prints the size, LIMIT + 1 if it is larger
        commit=$1 limit=$2 output=$3
        shift 3
        {
            echo "$commit"
            for known; do
                if in_team cat-file -e "$known^{commit}" 2>/dev/null; then echo "^$known"; fi
            done
        } >"$output.revs"
        status=0
        in_team pack-objects -q --revs --thin --stdout --delta-base-offset <"$output.revs" |
            head -c "$((limit + 1))" >"$output" || status=${PIPESTATUS[0]}
        rm -f -- "$output.revs"
        size=$(wc -c <"$output")
        if ((status && size <= limit)); then exit 1; fi
        echo "$size"
        ;;
    take) # PACK BRANCH COMMIT: what a colleague has pushed
        # Strict: where the agent has lost what was brought before, this says so, and everything is brought again.
        in_team index-pack --stdin --fix-thin --strict <"$1" >/dev/null
        rm -f -- "$1"
        in_team update-ref "refs/heads/$2" "$3"
        ;;
esac
