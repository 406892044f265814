# Kills every process whose environment carries a mark, until there is none: sh -c KILL_MARKED kill MARK
rounds=0
while [ "$rounds" -lt 50 ]; do
  rounds=$((rounds + 1))
  found=
  for file in $(grep -l -F -e "COOPERBENCH_COMMAND=$1" /proc/[0-9]*/environ 2>/dev/null); do
    process=${file#/proc/}
    kill -9 "${process%/environ}" 2>/dev/null && found=yes
  done
  [ "$found" ] || exit 0
done
