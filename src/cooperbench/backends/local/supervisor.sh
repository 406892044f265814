# The first process of a local sandbox: opens channels and streams for the harness, which talks to it over its stdin
# and stdout.
# Usage: supervisor.sh IO_DIR SCRATCH_DIR WORKDIR [trusted]
#
# channel N            a new channel on the named pipes IO_DIR/N.in and IO_DIR/N.out
# stream N MARK ARGV   a command with these pipes as its stdin and stdout; answers its process group
# kill MARK PGID       ends what a stream left
COOPERBENCH_CHANNEL=library
. "${BASH_SOURCE[0]%/*}/channel.sh"
exec 2>/dev/null
io=$1 scratch=$2 workdir=$3 trusted=${4-}
unset COOPERBENCH_CHANNEL

# Soft limits: enough for any build, little enough that a runaway process is noticed before the machine is full.
ulimit -S -u 16384
ulimit -S -f $((32 * 1024 * 1024)) # KiB
ulimit -c 0

mkdir -p -- "$scratch" "$workdir"
cd -- "$workdir" || cd /
exec {cb_never}<> <(:)
echo "cooperbench-supervisor ready"

open_pipes() { exec {from}<"$io/$1.in" {to}>"$io/$1.out"; }

# Job control gives each child a process group of its own and leaves SIGINT as it is.
set -m
while IFS= read -r line; do
  eval "words=($line)" # the host quotes every word
  number=${words[1]}
  case ${words[0]} in
    channel)
      open_pipes "$number"
      (set +m; exec <&"$from" >&"$to"; exec {from}<&- {to}>&-; cb_serve "$scratch/$number" "$trusted"; rm -rf -- "${scratch:?}/$number") &
      ;;
    stream)
      open_pipes "$number"
      (
        set +m
        exec <&"$from" >&"$to"
        exec {from}<&- {to}>&- {cb_never}<&-
        set -- "${words[@]:3}"
        if [[ $cb_had_lc_all ]]; then LC_ALL=$cb_lc_all; else unset LC_ALL; fi
        export COOPERBENCH_COMMAND="${words[2]}"
        unset OLDPWD
        exec -- "$@"
      ) &
      ;;
    kill)
      cb_kill_marked "$number" "${words[2]}"
      echo ok
      continue
      ;;
  esac
  echo "ok $!"
  disown $!
  exec {from}<&- {to}>&-
done
