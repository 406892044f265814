# Kills all processes with COOPERBENCH_COMMAND=MARK in their environment, until there are none.
# Usage: sh -c SCRIPT kill MARK
rounds=0
while [ "$rounds" -lt 50 ]; do
  rounds=$((rounds + 1))
  killed=
  for file in $(grep -l -F -e "COOPERBENCH_COMMAND=$1" /proc/[0-9]*/environ 2>/dev/null); do
    process=${file#/proc/}
    kill -9 "${process%/environ}" 2>/dev/null && killed=yes
  done
  [ "$killed" ] || exit 0
done
