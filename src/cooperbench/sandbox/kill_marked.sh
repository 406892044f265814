# Kills every process whose environment carries a mark, until there is none: sh -c KILL_MARKED kill MARK
rounds=0
while [ "$rounds" -lt 50 ]; do
  rounds=$((rounds + 1))
  found=
  for process in /proc/[0-9]*; do
    if grep -q -F -e "COOPERBENCH_COMMAND=$1" "$process/environ" 2>/dev/null; then
      kill -9 "${process#/proc/}" 2>/dev/null && found=yes
    fi
  done
  [ "$found" ] || exit 0
done
