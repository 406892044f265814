# Process 1 of a local sandbox. Usage: supervisor.sh PROCESSES FILE_KIB MODE …
#
# last WORKDIR ARGV
#   runs the last command, which is judged, and ends with its exit code
# serve IO_DIR SCRATCH_DIR WORKDIR [trusted]
#   starts channels and streams for the harness; reads requests from stdin and answers each with `ok`:
#   channel N            a channel on the named pipes IO_DIR/N.in and IO_DIR/N.out
#   stream N MARK ARGV   a command with these pipes as its stdin and stdout
#
# As process 1 it cannot be killed from inside, and as its program may not be read nothing inside can trace it, write to
# its memory or open what it has open.

# Hard limits: what control groups cannot enforce here.
ulimit -u "$1"
ulimit -f "$2"
ulimit -c 0
mode=$3
shift 3

if [[ $mode == last ]]; then
  cd -- "$1" || exit 126
  shift
  unset OLDPWD
  exec 3>&2 2>/dev/null # what bash says about a command that was killed is not part of its output
  "$@" 2>&3 3>&-
  exit
fi

COOPERBENCH_CHANNEL=library
. "${BASH_SOURCE[0]%/*}/channel.sh"
unset COOPERBENCH_CHANNEL
exec 2>/dev/null
io=$1 scratch=$2 workdir=$3 trusted=${4-}
mkdir -p -- "$scratch" "$workdir"
cd -- "$workdir" || cd /

# Job control gives each child a process group of its own and leaves SIGINT as it is.
set -m
while IFS= read -r line; do
  eval "words=($line)" # the host quotes every word
  number=${words[1]}
  exec {from}<"$io/$number.in" {to}>"$io/$number.out"
  (
    set +m
    exec <&"$from" >&"$to" {from}<&- {to}>&-
    if [[ ${words[0]} == channel ]]; then
      cb_serve "$scratch/$number" "$trusted"
      rm -rf -- "${scratch:?}/$number"
    else
      set -- "${words[@]:3}"
      cb_restore_locale
      export COOPERBENCH_COMMAND="${words[2]}"
      unset OLDPWD
      exec -- "$@"
    fi
  ) &
  echo ok
  disown $!
  exec {from}<&- {to}>&-
done
