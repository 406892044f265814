# The inside end of a CooperBench channel: reads requests on stdin, answers on stdout, for as long as stdin is open.
# Usage: bash channel.sh SCRATCH_DIR        (needs bash >= 4.4 and coreutils; channel.py is the other end)
#
# A request is one line of quoted words, optionally followed by raw bytes. Each command runs in a fresh process of
# its own process group, and writes into two named pipes. All its processes carry COOPERBENCH_COMMAND=<mark> in their
# environment, by which those that left the process group are found.
#
# Most commands end soon and print little, which stays in the pipes until we read it: up to an end mark. These have no
# other processes than the command and the shell that waits for it, since each one takes time to start. For all others
# two readers, which are there already, as the command may use up all processes, become split(1). That writes chunk
# files and keeps nothing back: so the output so far is available although a background process still holds the pipe,
# what is cut is counted exactly, and no writer dies of SIGPIPE.
#
# run   ID MARK TIMEOUT_MS CHUNK STDIN_SIZE STDIN_TEXT CWD N ENV*N ARGV...             (+ STDIN_SIZE bytes)
# write ID MARK MODE SIZE TEXT PATH                                                     (+ SIZE bytes)
# read  ID MAX PATH
# Answers: "= ID ..." or "! ID KIND LENGTH" and a message. A body is raw with a known length (t); of kind b it goes on
# with one line of base64, in which the end mark may be. The closing line carries the exit codes of what produced it.

shopt -s nullglob
cb_had_lc_all=${LC_ALL+yes}
cb_lc_all=${LC_ALL-}
LC_ALL=C
cb_end_mark='\0cooperbench-channel end\0'

cb_now_us() { # sets cb_now; whole seconds where bash is older than 5
  if [[ ${EPOCHREALTIME-} ]]; then cb_now=${EPOCHREALTIME/./}; else cb_now=$((SECONDS * 1000000)); fi
}

cb_self_test() { # the tools must do exactly what the protocol relies on; prints what is wrong
  local tool name=$1/self-test
  for tool in split head tail base64 cat wc mkdir mkfifo rm mv chmod env; do
    type -P "$tool" >/dev/null || { echo "$tool is missing"; return 1; }
  done
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "bash is older than 4.4"; return 1; }
  mkdir -p -- "$1" || { echo "cannot write to $1"; return 1; }
  printf abc | { head -c 2 >/dev/null; IFS= read -r -n 1 tool; [[ $tool == c ]]; } ||
    { echo "head -c reads more than it is told"; return 1; }
  printf 'a\0b' | split -b 2 -a 6 - "$name." && [[ -s $name.aaaaaa && -s $name.aaaaab ]] ||
    { echo "split does not split"; return 1; }
  [[ $(base64 -w 0 <"$name.aaaaaa") == YQA= ]] || { echo "base64 does not take -w 0"; return 1; }
  [[ -r /proc/self/environ ]] || { echo "/proc is not mounted"; return 1; }
  rm -f "$name."*
}

cb_kill_marked() { # MARK [PGID]: kill what carries the mark until nothing does, in the group or out of it
  local round found process variable variables
  for ((round = 0; round < 50; round++)); do
    found=
    [[ ${2-} ]] && kill -KILL -- "-$2" && found=yes
    for process in /proc/[0-9]*; do
      mapfile -d '' -t variables <"$process/environ" || continue
      for variable in "${variables[@]}"; do
        [[ $variable == "COOPERBENCH_COMMAND=$1" ]] || continue
        kill -KILL "${process#/proc/}" && found=yes
        break
      done
    done
    [[ $found ]] || return 0
    IFS= read -r -t 0.005 -u "$cb_control" variable
  done
}

cb_survivors() { # MARK PGID: does anything of the command still live?
  local process variable variables
  kill -0 -- "-$2" && return 0
  for process in /proc/[0-9]*; do
    mapfile -d '' -t variables <"$process/environ" || continue
    for variable in "${variables[@]}"; do
      [[ $variable == "COOPERBENCH_COMMAND=$1" ]] && return 0
    done
  done
  return 1
}

cb_new_dir() { # a folder with pipes that no process of an earlier command has open
  local both
  cb_dir=$cb_scratch/$((++cb_dirs))
  mkdir -p -- "$cb_dir" && mkfifo -- "$cb_dir/out" "$cb_dir/err" "$cb_dir/readers" || return
  # By way of a descriptor for both, as opening one end waits for the other.
  exec {both}<>"$cb_dir/out" {cb_out}<"$cb_dir/out" {both}>&-
  exec {both}<>"$cb_dir/err" {cb_err}<"$cb_dir/err" {both}>&-
  exec {both}<>"$cb_dir/readers" {cb_readers}<"$cb_dir/readers" {both}>&-
  cb_new_readers
}

cb_new_readers() { # they end with us; cb_readers is at its end when they have ended
  exec {cb_held}>"$cb_dir/readers" # before they start, else it would be at its end until then
  exec {cb_to_out}> >(cb_reader o "$cb_out")
  cb_out_reader=$!
  exec {cb_to_err}> >(exec {cb_to_out}>&-; cb_reader e "$cb_err")
  cb_err_reader=$!
  exec {cb_held}>&-
}

cb_reader() { # PREFIX PIPE: becomes split when it is told the size of chunks
  local chunk
  exec >&"$cb_held" {cb_held}>&- {cb_readers}<&- {cb_control}<&-
  IFS= read -r chunk || exit
  exec split -b "$chunk" -a 6 - "$cb_dir/$1." <&"$2"
}

cb_janitor() { # READERS DIR: as long as background processes write, keep throwing away what they wrote
  local rest
  while :; do
    IFS= read -r -t 1 -u "$1" rest
    (($? > 128)) || break
    rm -f -- "$2"/[oe].??????
  done
  rm -rf -- "$2"
  rmdir -- "$cb_scratch" # succeeds for the last one, when the channel has gone before
}

cb_at_eof() { # READERS SECONDS: have they ended, now or within this time?
  local rest
  # Not `while read …`: the status of a loop is that of its body.
  while :; do
    IFS= read -r -t "$2" -u "$1" rest && continue
    (($? <= 128))
    return
  done
}

cb_trim() { # of a long output only the first and the last two chunks can be needed
  local files
  files=("$cb_dir"/o.??????)
  if ((${#files[@]} > 6)); then
    rm -f -- "${files[@]:1:${#files[@]}-3}"
    ((cb_removed_out += ${#files[@]} - 3))
  fi
  files=("$cb_dir"/e.??????)
  if ((${#files[@]} > 6)); then
    rm -f -- "${files[@]:1:${#files[@]}-3}"
    ((cb_removed_err += ${#files[@]} - 3))
  fi
}

cb_exec() { # becomes the command
  local count=${cb_words[8]} prefix=()
  exec >&"$to_out" 2>&"$to_err" <"$cb_input"
  exec {to_out}>&- {to_err}>&- {cb_control}<&-
  cd -- "${cb_words[7]}" || exit 126
  ((count)) && prefix=(env -- "${cb_words[@]:9:count}")
  set -- "${prefix[@]}" "${cb_words[@]:9+count}"
  if [[ $cb_had_lc_all ]]; then LC_ALL=$cb_lc_all; else unset LC_ALL; fi
  export COOPERBENCH_COMMAND="${cb_words[2]}"
  unset OLDPWD
  exec -- "$@"
}

cb_command() { # starts the command and waits for it; says "ID PID", then "ID" when the end marks are there
  local id=${cb_words[1]} to_out to_err code
  exec </dev/null >/dev/null {to_out}>"$cb_dir/out" {to_err}>"$cb_dir/err" || exit
  exec {cb_out}<&- {cb_err}<&- {cb_readers}<&- {cb_to_out}>&- {cb_to_err}>&-
  set -m # a process group of its own
  (set +m; cb_exec) &
  set +m # else one that is stopped counts as ended
  echo "$id $!" >&"$cb_control"
  wait $!
  code=$?
  if [[ ! -s $cb_dir/split ]]; then
    # Where a pipe is full, this waits for a reader.
    printf "$cb_end_mark" >&"$to_out"
    printf "$cb_end_mark" >&"$to_err"
  fi
  exec {to_out}>&- {to_err}>&-
  echo "$id" >&"$cb_control"
  exit "$code"
}

cb_heard() { # MICROSECONDS: sets cb_word to what cb_command says next, about the command of cb_run
  local seconds
  printf -v seconds '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000))
  while IFS= read -r -t "$seconds" -u "$cb_control" cb_word; do
    [[ $cb_word == "$id" || $cb_word == "$id "* ]] && return
  done
  return 1
}

cb_take() { # PIPE: what a command that has ended has left there: cb_text, for printf %b, and cb_length
  local rest='' ended # fails if there is or may come more
  IFS= read -r -d '' -n 4096 -u "$1" cb_text # up to a NUL byte
  ended=$? cb_length=${#cb_text} cb_text=${cb_text//\\/\\\\}
  ((ended == 0 && cb_length < 4096)) || return
  IFS= read -r -d '' -n 64 -u "$1" rest
  if [[ "\\0$rest\\0" != "$cb_end_mark" ]]; then
    cb_text+="\\0000${rest//\\/\\\\}"
    cb_length=$((cb_length + 1 + ${#rest}))
    ((${#rest} == 64)) || cb_length=$((cb_length + 1)) cb_text+=\\0000
    return 1
  fi
  read -r -t 0 -u "$1" || return # it is empty, but somebody has it open
  IFS= read -r -d '' -n 1 -u "$1" rest || return 0
  cb_text+=${rest/\\/\\\\} cb_length=$((cb_length + 1))
  [[ $rest ]] || cb_text+=\\0000
  return 1
}

cb_drain() { # a background process holds the pipes: wait until what was written has been read
  local reader probe step
  for reader in "$@"; do
    exec {probe}<"/proc/$reader/fd/0" || continue
    for ((step = 0; step < 100; step++)); do
      read -r -t 0 -u "$probe" || break
      IFS= read -r -t 0.01 -u "$cb_control"
    done
    exec {probe}<&-
  done
  IFS= read -r -t 0.02 -u "$cb_control"
}

cb_collect() { # PREFIX CHUNK REMOVED: adds to cb_text and cb_length what was read; sets cb_kind, cb_cut, cb_files
  local text='' last_size
  cb_files=("$cb_dir/$1".??????) cb_kind=t cb_cut=0
  if ((${#cb_files[@]} <= 1)); then
    # Succeeds only at a NUL byte or at the length limit; a text that ends before is whole and needs no process.
    if [[ -s $cb_dir/$1.aaaaaa ]] && IFS= read -r -d '' -n 4096 text <"$cb_dir/$1.aaaaaa"; then
      cb_kind=b
    else
      cb_text+=${text//\\/\\\\} cb_length=$((cb_length + ${#text}))
    fi
    return
  fi
  cb_kind=b
  last_size=$(wc -c <"${cb_files[-1]}")
  cb_cut=$((($3 + ${#cb_files[@]} - 3) * $2 + last_size))
  ((cb_cut > 0)) || cb_cut=0
}

cb_body() { # CHUNK CUT FILES: the output as one line of base64
  local chunk=$1 cut=$2
  shift 2
  if ((cut)); then
    { cat -- "$1"; cat -- "${@: -2}" | tail -c "$chunk"; } | base64 -w 0
  else
    cat -- "$@" | base64 -w 0
  fi
  cb_status+="${PIPESTATUS[*]} "
  echo
}

cb_run() {
  local id=${cb_words[1]} mark=${cb_words[2]} size=${cb_words[5]} waiter pid code started deadline left ended='' whole=
  local out_text='' out_length=0 err_text='' err_length=0
  cb_input=/dev/null
  if ((size)) || [[ ${cb_words[6]} ]]; then
    cb_input=$cb_scratch/stdin.$id
    if ((size)); then head -c "$size" >"$cb_input"; else printf %s "${cb_words[6]}" >"$cb_input"; fi ||
      cb_give_up "$id" "cannot store the input"
  fi
  [[ -p $cb_dir/out && -p $cb_dir/err ]] || cb_give_up "$id" "cannot write to $cb_dir"
  cb_now_us
  started=$cb_now deadline=$((cb_now + ${cb_words[3]} * 1000))
  cb_command &
  waiter=$!
  cb_heard 60000000 || cb_give_up "$id" "cannot start a process"
  pid=${cb_word#* }
  left=$((deadline - started))
  if cb_heard $((left < 50000 ? left : 50000)); then
    ended=yes whole=yes
    cb_take "$cb_out" || whole=
    out_text=$cb_text out_length=$cb_length
    cb_take "$cb_err" || whole=
    err_text=$cb_text err_length=$cb_length
  fi
  if [[ $whole ]]; then
    cb_now_us
    wait "$waiter"
    printf '= %s %s 0 %s t %s 0 t %s 0\n%b%b. \n' \
      "$id" $? $((cb_now - started)) "$out_length" "$err_length" "$out_text" "$err_text"
  else
    cb_run_long
  fi
  [[ $cb_input == /dev/null ]] || rm -f -- "$cb_input"
}

cb_run_long() { # the rest of cb_run
  local chunk=${cb_words[4]} timed_out=0 lingers='' cb_status='' pause=10000
  local out_kind out_cut out_files err_files
  cb_removed_out=0 cb_removed_err=0
  : >"$cb_dir/o.aaaaaa" >"$cb_dir/e.aaaaaa" && echo yes >"$cb_dir/split" ||
    cb_give_up "$id" "cannot write to $cb_dir"
  echo "$chunk" >&"$cb_to_out"
  echo "$chunk" >&"$cb_to_err"
  exec {cb_to_out}>&- {cb_to_err}>&-
  while [[ ! $ended ]]; do
    cb_now_us
    left=$((deadline - cb_now))
    ((left > 0)) || { timed_out=1; break; }
    # A word that comes when the time is up is lost: a command that ends then is seen by its waiter's end.
    ((pause = pause < 500000 ? 2 * pause : 1000000))
    cb_heard $((left < pause ? left : pause)) && ended=yes
    kill -0 "$waiter" || ended=yes
    cb_trim
  done
  if ((timed_out)); then
    kill -TERM -- "-$pid"
    cb_heard 2000000
    cb_kill_marked "$mark" "$pid"
    code=124
    cb_at_eof "$cb_readers" 2 || lingers=yes
  else
    wait "$waiter"
    code=$? # 137 also where what waited for the command was itself killed
    if ! cb_at_eof "$cb_readers" 0.1; then
      if cb_survivors "$mark" "$pid"; then
        cb_drain "$cb_out_reader" "$cb_err_reader"
        lingers=yes
      else
        cb_at_eof "$cb_readers" 10 || lingers=yes # only a busy machine is in the way
      fi
    fi
  fi
  cb_now_us
  cb_trim
  cb_text=$out_text cb_length=$out_length
  cb_collect o "$chunk" "$cb_removed_out"
  out_kind=$cb_kind out_text=$cb_text out_length=$cb_length out_cut=$cb_cut out_files=("${cb_files[@]}")
  cb_text=$err_text cb_length=$err_length
  cb_collect e "$chunk" "$cb_removed_err"
  err_files=("${cb_files[@]}")
  printf '= %s %s %s %s %s %s %s %s %s %s\n%b' "$id" "$code" "$timed_out" $((cb_now - started)) \
    "$out_kind" "$out_length" "$out_cut" "$cb_kind" "$cb_length" "$cb_cut" "$out_text"
  [[ $out_kind == t ]] || cb_body "$chunk" "$out_cut" "${out_files[@]}"
  printf %b "$cb_text"
  [[ $cb_kind == t ]] || cb_body "$chunk" "$cb_cut" "${err_files[@]}"
  printf '. %s\n' "$cb_status"
  if [[ $lingers ]]; then
    cb_lingered=yes
    cb_janitor "$cb_readers" "$cb_dir" </dev/null >/dev/null &
    exec {cb_out}<&- {cb_err}<&- {cb_readers}<&-
    cb_new_dir
  else
    : >"$cb_dir/split"
    cb_new_readers
    ((${#out_files[@]} + ${#err_files[@]} <= 2)) || rm -f -- "${out_files[@]:1}" "${err_files[@]:1}"
  fi
}

cb_refuse() { # ID KIND MESSAGE
  printf '! %s %s %s\n%s' "$1" "$2" "${#3}" "$3"
}

cb_give_up() { # the stream of requests can no longer be followed: say why and end
  cb_refuse "$1" broken "$2"
  exit 1
}

cb_store() { # 1: could not be written; 2: nor could the request be read to its end
  local size=${cb_words[4]} path=${cb_words[6]} folder temporary
  folder=${path%/*}
  temporary=$folder/.cooperbench-${cb_words[2]}
  [[ -d $folder/ ]] || mkdir -p -- "$folder"
  if ! : >"$temporary"; then
    if ((size)); then head -c "$size" >/dev/null || return 2; fi
    return 1
  fi
  if ((size)); then head -c "$size" >"$temporary" || { rm -f -- "$temporary"; return 2; }
  else printf %s "${cb_words[5]}" >"$temporary" || { rm -f -- "$temporary"; return 1; }; fi
  chmod "${cb_words[3]}" -- "$temporary" && mv -fT -- "$temporary" "$path" && return 0
  rm -f -- "$temporary"
  return 1
}

cb_write() {
  local id=${cb_words[1]} log=$cb_scratch/message message=''
  cb_store 2>"$log"
  case $? in
    0) echo "= $id ok"; return ;;
    2) cb_give_up "$id" "cannot write ${cb_words[6]}" ;;
  esac
  IFS= read -r message <"$log"
  cb_refuse "$id" failed "${message:-cannot be written}"
}

cb_read() {
  local id=${cb_words[1]} path=${cb_words[3]} cb_status=''
  [[ -e $path ]] || { cb_refuse "$id" missing "no such file"; return; }
  [[ -f $path ]] || { cb_refuse "$id" failed "not a regular file"; return; }
  [[ -r $path ]] || { cb_refuse "$id" failed "permission denied"; return; }
  echo "= $id ok"
  head -c "${cb_words[2]}" -- "$path" | base64 -w 0
  cb_status="${PIPESTATUS[*]}"
  printf '\n. %s\n' "$cb_status"
}

cb_serve() { # SCRATCH_DIR [trusted]: answer requests until stdin ends
  local line problem
  cb_scratch=$1 cb_dirs=0 cb_lingered=
  exec {cb_control}<> <(:) # reading it with a time limit is also a sleep without a process
  if { [[ ${2-} != trusted ]] && ! problem=$(cb_self_test "$1"); } ||
    { problem="cannot write to $1"; ! cb_new_dir; }; then
    echo "cooperbench-channel unavailable $problem"
    return 1
  fi
  echo "cooperbench-channel 1 ready"
  while IFS= read -r line; do
    eval "cb_words=($line)" # the host quotes every word
    case ${cb_words[0]} in
      run) cb_run ;;
      write) cb_write ;;
      read) cb_read ;;
      *) cb_give_up 0 "unknown request" ;;
    esac
  done
}

if [[ ${COOPERBENCH_CHANNEL-serve} == serve ]]; then
  exec 2>/dev/null
  cb_serve "$@"
  if [[ $cb_lingered ]]; then rm -rf -- "$cb_dir" "$1/message"; rmdir -- "$1"; else rm -rf -- "$1"; fi
fi
