# What the harness does on the git server; run by bash after clean_git.sh: manage.sh COMMAND ROOT ...
command=$1 root=$2
shift 2

case $command in
    start) # HOST PORT SECONDS: returns when it listens
        mkdir -p -- "$root/pairs" "$root/bases"
        chmod 700 "$root"
        command -v git >/dev/null || { echo "there is no git" >&2; exit 1; }
        setsid python3 "$root/program/serve.py" "$root/pairs" "$1" "$2" </dev/null >"$root/said" 2>"$root/errors" &
        pid=$! end=$((SECONDS + $3))
        echo "$pid" >"$root/pid"
        until grep -q listening "$root/said" 2>/dev/null; do
            if ((SECONDS >= end)) || ! kill -0 "$pid" 2>/dev/null; then
                tail -n 1 "$root/errors" >&2
                kill -9 "$pid" 2>/dev/null || true
                exit 1
            fi
            sleep 0.05
        done
        ;;
    alive) kill -0 "$(cat "$root/pid")" ;;
    has-base) test -d "$root/bases/$1.git" ;; # COMMIT
    base) # COMMIT PACK
        base=$root/bases/$1
        rm -rf -- "$base.half"
        clean_git init -q --bare --template= --object-format=sha1 "$base.half"
        clean_git --git-dir="$base.half" index-pack --stdin --strict <"$2" >/dev/null
        clean_git --git-dir="$base.half" cat-file -e "$1^{commit}"
        mv -- "$base.half" "$base.git"
        rm -f -- "$2"
        ;;
    create) # NAME COMMIT QUOTA_BYTES MOST_PUSHES AGENT_ID...
        pair=$root/pairs/$1 commit=$2
        mkdir -p -- "$pair"
        echo "$3 $4" >"$pair/quota"
        quota=$3
        shift 4
        printf '%s\n' "$@" >"$pair/agents"
        : >"$pair/log"
        make_bare "$pair/repo.git" "$root/bases/$commit.git/objects" "$commit" "$@"
        for setting in http.receivepack=true receive.fsckObjects=true receive.unpackLimit=1 receive.maxInputSize="$quota" \
            core.fsync=none core.bigFileThreshold=64m pack.threads=1; do
            clean_git --git-dir="$pair/repo.git" config "${setting%%=*}" "${setting#*=}"
        done
        for hook in pre-receive post-receive; do cp -- "$root/program/$hook" "$pair/repo.git/hooks/$hook"; done
        ;;
    bundle) # NAME: all branches as one file that can be cloned; prints its size
        pair=$root/pairs/$1
        clean_git --git-dir="$pair/repo.git" bundle create --quiet "$pair/bundle" HEAD --branches
        wc -c <"$pair/bundle"
        ;;
    remove) rm -rf -- "$root/pairs/$1" ;; # NAME
esac
