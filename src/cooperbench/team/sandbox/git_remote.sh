# What the harness does to repositories in a sandbox; run by bash after clean_git.sh: gitremote.sh COMMAND GIT_DIR ...
command=$1 git_dir=$2
shift 2
there() { clean_git --git-dir="$git_dir" "$@"; }

case $command in
    install) # BASE_GIT COMMIT AGENT_ID...: an empty repository that borrows the base commit
        base_git=$1
        shift
        rm -rf -- "$git_dir"
        make_bare "$git_dir" "$base_git/objects" "$@"
        ;;
    join) # URL COMMIT OWN_ID AGENT_ID...: the remote `team` in the agent's repository, which is at GIT_DIR with its files
        repo=$git_dir url=$1 commit=$2 own=$3
        shift 3
        for branch in main "$@"; do
            clean_git -C "$repo" update-ref "refs/remotes/team/$branch" "$commit"
        done
        clean_git -C "$repo" config remote.team.url "$url"
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
    take) # PACK BRANCH COMMIT: what a colleague has pushed
        # Strict: where the agent has lost what was brought before, this says so, and everything is brought again.
        there index-pack --stdin --fix-thin --strict <"$1" >/dev/null
        rm -f -- "$1"
        there update-ref "refs/heads/$2" "$3"
        ;;
esac
