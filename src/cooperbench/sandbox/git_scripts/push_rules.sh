#!/bin/sh
# What every update hook of a team's repository begins with: `check_push REF NEW OWN COLLEAGUES` lets an agent move its own
# branch and nothing else. OWN is the agent's id, COLLEAGUES a file with those of the others.
set -u
refuse() { printf '%s\n' "$1" >&2; exit 1; }

check_push() {
    try="push to your own: git push team HEAD:$3"
    case $1 in
        "refs/heads/$3") ;;
        refs/heads/main) refuse "main stays at the commit that everybody started from; $try" ;;
        refs/heads/*)
            branch=${1#refs/heads/}
            if grep -qxF "$branch" "$4"; then refuse "$branch is your colleague's branch; $try"; fi
            refuse "there is one branch per agent, and none named $branch; $try" ;;
        *) refuse "only branches can be shared, not $1; $try" ;;
    esac
    case $2 in *[!0]*) ;; *) refuse "the branch $3 cannot be deleted; you can force-push it" ;; esac
}

