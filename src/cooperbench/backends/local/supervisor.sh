# Process 1 of a local sandbox.
# Usage: supervisor.sh MAX_PROCESSES MAX_FILE_KIB MODE ARGUMENTS...
#
# Modes:
#   last WORKDIR ARGV...
#     Runs the last command, a test run, and exits with its exit code.
#   serve IO_DIR SCRATCH_DIR WORKDIR [trusted]
#     Starts channels and streams for the harness. Reads requests from stdin, one line each, and answers `ok`:
#       channel N                 a channel (channel.sh) on the named pipes IO_DIR/N.in and IO_DIR/N.out
#       stream N MARK ARGV...     a command with these pipes as its stdin and stdout
#
# As process 1 it cannot be killed from inside. Its program file may not be read, so no process inside can trace it,
# write to its memory or open its files.

# Hard limits, for machines on which control groups cannot enforce them.
ulimit -u "$1"
ulimit -f "$2"
ulimit -c 0
mode=$3
shift 3

if [[ $mode == last ]]; then
  cd -- "$1" || exit 126
  shift
  unset OLDPWD
  exec 3>&2 2>/dev/null # bash reports a killed command on stderr, which is not part of the command's output
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

# With job control each child has a process group of its own and does not ignore SIGINT.
set -m
while IFS= read -r line; do
  eval "request=($line)" # the host quotes every word
  number=${request[1]}
  exec {from}<"$io/$number.in" {to}>"$io/$number.out"
  (
    set +m
    exec <&"$from" >&"$to" {from}<&- {to}>&-
    if [[ ${request[0]} == channel ]]; then
      cb_serve "$scratch/$number" "$trusted"
      rm -rf -- "${scratch:?}/$number"
    else
      set -- "${request[@]:3}"
      cb_restore_locale
      export COOPERBENCH_COMMAND="${request[2]}"
      unset OLDPWD
      exec -- "$@"
    fi
  ) &
  echo ok
  disown $!
  exec {from}<&- {to}>&-
done
