# The first process of a container: serves the first channel and ends the container when its time is over or when
# nobody holds the other end of its stdin any more. Needs sh and sleep; says so where bash is missing.
# Usage: sh -c SUPERVISOR supervisor CHANNEL_SCRIPT SCRATCH_DIR LIFETIME_SECONDS [trusted|'']
# A channel that ends with 90 leaves the container to /cooperbench/last, a script for bash.
# Exit codes else: 143 or 86 the lifetime is over, 87 the harness has gone.
#
# The channel runs in the foreground: what sh starts in the background ignores SIGINT, and so would all commands.
exec 3<&0 </dev/null
# Process 1 has no default actions for signals, and acts on a trap only when its child has ended.
[ $$ = 1 ] && trap 'exit 86' TERM
# Here and below, every process that is not started lets containers start sooner. The last is the channel's folder.
mkdir -p /cooperbench/bin /patches "$2/1" 2>/dev/null

# An engine that was told to leave the network alone leaves this file alone too.
read -r name </proc/sys/kernel/hostname
hosts=
[ ! -r /etc/hosts ] || while read -r line || [ -n "$line" ]; do hosts="$hosts $line"; done </etc/hosts
{
  case $hosts in *localhost*) ;; *) printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' ;; esac
  case $hosts in *"$name"*) ;; *) echo "127.0.1.1 $name" ;; esac
} 2>/dev/null >>/etc/hosts

# A loop, as somebody may kill a sleep that is not his.
(
  trap - TERM
  look() { read -r now idle </proc/uptime; now=${now%.*}; }
  look
  end=$((now + $3))
  while look; left=$((end - now)); [ "$left" -gt 0 ]; do sleep "$left"; done
  kill -TERM $$
  [ $$ = 1 ] && kill -KILL -1
) 3<&- >/dev/null 2>&1 &

if command -v bash >/dev/null 2>&1; then
  bash -c "$1" channel "$2" "$4" <&3 3<&-
  # The last command takes our place: nothing of the harness is left here, and the engine tells its exit code.
  [ $? = 90 ] && exec bash /cooperbench/last 3<&-
else
  echo "cooperbench-channel unavailable bash is missing"
fi
# Where the channel was killed or could not serve, others take its place; what ends us is that its stdin ends. The
# harness cannot see the channel end, as we hold its stdout too: it is told.
echo "cooperbench-supervisor: the channel has ended" >&2
(while read -r line; do :; done) <&3 3<&- &
exec 3<&-
wait $!
exit 87
