# Process 1 of a container, which no process inside can kill: serves the first channel, and ends the container when its
# time is over or when nobody holds the other end of its stdin any more. Needs sh and sleep.
# Usage: sh -c SUPERVISOR supervisor CHANNEL_SCRIPT SCRATCH_DIR LIFETIME_SECONDS [trusted|'']
# Without a channel's script it waits for the container's only command: the length of a script in bytes, on a line of its
# own, and the script, which finds the files that it writes behind it, at descriptor 3, and says when it has them.
# Exit codes else: 86 the lifetime is over, 87 the harness has gone.
#
# The channel runs in the foreground: what sh starts in the background ignores SIGINT, and so would all commands.
exec 3<&0 </dev/null
# Process 1 acts on a trap only when its child has ended. Nobody else sends USR1; SIGTERM is ignored by default.
trap 'exit 86' USR1
# Here and below, every process that is not started lets containers start sooner. The last is the channel's folder.
[ -z "$1" ] || mkdir -p /cooperbench/bin /patches "$2/1" 2>/dev/null

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
  trap - USR1
  look() { read -r now idle </proc/uptime; now=${now%.*}; }
  look
  end=$((now + $3))
  while look; left=$((end - now)); [ "$left" -gt 0 ]; do sleep "$left"; done
  kill -USR1 1
  while kill -KILL -1; do sleep 1; done
) 3<&- >/dev/null 2>&1 &

if ! command -v bash >/dev/null 2>&1; then
  echo "cooperbench-channel unavailable bash is missing"
elif [ "$1" ]; then
  bash -c "$1" channel "$2" "$4" <&3 3<&-
else
  read -r size <&3 && eval "$(head -c "$size" <&3)"
fi
# Where the channel was killed or could not serve, others take its place; what ends us is that its stdin ends. The
# harness cannot see the channel end, as we hold its stdout too: it is told.
echo "cooperbench-supervisor: the channel has ended" >&2
while :; do
  (while read -r line; do :; done) <&3 &
  # Not 0 where somebody has killed the reader.
  wait $! && exit 87
done
