# The beginning of scripts that compare the work tree with the base commit (snapshot.sh, track_changes.sh,
# changed_files.sh). Calls with the same SCRATCH_DIR must not run at the same time.
#
# Git gets an index and an object store of its own: whatever an agent did to REPO/.git (commits, resets, hooks, config,
# deletion) does not matter. Untracked files count, ignored ones do not.
unset LD_PRELOAD LD_LIBRARY_PATH
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

use_work_tree() { # REPO BASE_GIT_DIR SCRATCH_DIR
    export GIT_DIR="$2" GIT_WORK_TREE="$1" GIT_INDEX_FILE="$3/index"
    export GIT_OBJECT_DIRECTORY="$3/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$2/objects"
    export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME="$3" LC_ALL=C
    mkdir -p "$3/objects"
    # A call that was killed may have left it.
    rm -f "$3/index.lock"
}

git() {
    command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false -c core.safecrlf=false \
        -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null -c core.bare=false -c core.fileMode=true \
        -c core.quotePath=false -c core.untrackedCache=false -c safe.directory='*' "$@"
}
