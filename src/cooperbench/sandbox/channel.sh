# The inside end of a CooperBench channel: reads requests on stdin and answers on stdout until stdin ends.
# Usage: bash channel.sh SCRATCH_DIR [trusted]
# Needs bash >= 4.4, coreutils and /proc. channel.py is the other end. `trusted` skips the check of the tools.
#
# PROTOCOL
#
# The first line is "cooperbench-channel 1 ready" or "cooperbench-channel unavailable REASON".
#
# A request is one line of words that bash can evaluate, sometimes followed by raw bytes:
#   run   ID MARK TIMEOUT_MS CHUNK_SIZE STDIN_SIZE STDIN_TEXT CWD ENV_COUNT ENV... ARGV...   + STDIN_SIZE bytes
#   write ID MARK MODE SIZE TEXT PATH                                                        + SIZE bytes
#   read  ID MAX_BYTES PATH
# Small contents come as a word (TEXT, with SIZE 0): raw bytes need a head(1) process to read them.
#
# Each request has one answer:
#   run    "= ID EXIT_CODE TIMED_OUT MICROSECONDS OUT_KIND OUT_LENGTH OUT_CUT ERR_KIND ERR_LENGTH ERR_CUT",
#          the body of stdout, the body of stderr, a closing line
#   write  "= ID ok"
#   read   "= ID ok", the file as a line of base64, a closing line
#   any    "! ID KIND LENGTH" and a message of LENGTH bytes. KIND: `missing` (no such file), `failed`, or `broken`
#          (requests can no longer be told apart, and the channel exits)
# A body is LENGTH raw bytes; if its KIND is `b`, a line of base64 follows. CUT counts bytes left out of the middle.
# The closing line is "." and the exit statuses of the processes that produced the answer; the host wants zeros.
#
# HOW A COMMAND RUNS
#
#   channel (this shell)
#   ├── waiter (subshell): starts the command, waits for it, reports to cb_events
#   │   └── the command, in a process group of its own, with COOPERBENCH_COMMAND=MARK in its environment;
#   │       processes that leave the group are found by this mark
#   └── two readers, idle: subshells that can become split(1), one for stdout, one for stderr
#
# Stdout and stderr are named pipes. Starting a process is what a short command costs most, so there are two ways:
#   quick   The command ends within 50 ms and its output fits into the pipes. The waiter writes an end marker behind
#           it, and this shell reads up to the marker. No further process is needed.
#   long    The readers become split(1) and move the output from the pipes into chunk files. Only the first and the last
#           two chunks are kept. As split holds nothing back, the output so far is complete even if a background process
#           keeps the pipe open; what is cut can be counted exactly; and no writer dies of SIGPIPE.
# The readers exist before the command starts, because a command may use up all processes.
#
# FILE DESCRIPTORS (variables with their numbers)
#   cb_events                   a pipe, open for reading and writing: what the waiter reports. Reading it with a time
#                               limit is also how we sleep without starting a process.
#   cb_out_pipe, cb_err_pipe    read ends of the named pipes of stdout and stderr
#   cb_out_start, cb_err_start  write ends of the idle readers' stdin: a chunk size makes a reader start
#   cb_readers_alive            read end of a named pipe that both readers hold open: it ends when they have ended
#   cb_alive_token              its write end, for the readers to inherit
#   cb_out_write, cb_err_write  in the waiter: write ends of the named pipes
#
# All variables that a command could inherit begin with cb_, so that no variable of the image is overwritten.

shopt -s nullglob
cb_had_lc_all=${LC_ALL+yes}
cb_lc_all=${LC_ALL-}
LC_ALL=C # lengths are in bytes
cb_marker_text='cooperbench-channel end'
cb_quick_us=50000
cb_quick_bytes=4096
declare -A cb_text cb_length cb_kind cb_cut cb_removed

# ---- helpers --------------------------------------------------------------------------------------------------------

cb_restore_locale() {
  if [[ $cb_had_lc_all ]]; then LC_ALL=$cb_lc_all; else unset LC_ALL; fi
}

cb_read_clock() { # sets cb_now_us; whole seconds where bash is older than 5
  if [[ ${EPOCHREALTIME-} ]]; then cb_now_us=${EPOCHREALTIME/./}; else cb_now_us=$((SECONDS * 1000000)); fi
}

cb_sleep() { # SECONDS; an event that arrives meanwhile is lost
  IFS= read -r -t "$1" -u "$cb_events"
}

cb_has_mark() { # PROC_DIR MARK: is this a process of the command with this mark?
  local cb_variable cb_variables
  mapfile -d '' -t cb_variables <"$1/environ" || return
  for cb_variable in "${cb_variables[@]}"; do
    [[ $cb_variable == "COOPERBENCH_COMMAND=$2" ]] && return
  done
  return 1
}

cb_is_running() { # MARK PGID: does any process of the command live, in its group or out of it?
  local cb_process
  kill -0 -- "-$2" && return
  for cb_process in /proc/[0-9]*; do
    cb_has_mark "$cb_process" "$1" && return
  done
  return 1
}

cb_kill_command() { # MARK PGID: kill its processes until none is left
  local cb_round cb_process cb_killed
  for ((cb_round = 0; cb_round < 50; cb_round++)); do
    cb_killed=
    kill -KILL -- "-$2" && cb_killed=yes
    for cb_process in /proc/[0-9]*; do
      cb_has_mark "$cb_process" "$1" && kill -KILL "${cb_process#/proc/}" && cb_killed=yes
    done
    [[ $cb_killed ]] || return 0
    cb_sleep 0.005
  done
}

cb_answer_error() { # ID KIND MESSAGE
  printf '! %s %s %s\n%s' "$1" "$2" "${#3}" "$3"
}

cb_give_up() { # ID MESSAGE: the stream of requests can no longer be followed
  cb_answer_error "$1" broken "$2"
  exit 1
}

# ---- readers --------------------------------------------------------------------------------------------------------

cb_make_dir() { # a folder with named pipes that no process of an earlier command has open, and readers for it
  local cb_both_ends
  cb_dir=$cb_scratch/$((++cb_dir_count))
  mkdir -p -- "$cb_dir" && mkfifo -- "$cb_dir/out" "$cb_dir/err" "$cb_dir/readers" || return
  # Opening one end of a named pipe waits for the other end, but opening both does not.
  exec {cb_both_ends}<>"$cb_dir/out" {cb_out_pipe}<"$cb_dir/out" {cb_both_ends}>&-
  exec {cb_both_ends}<>"$cb_dir/err" {cb_err_pipe}<"$cb_dir/err" {cb_both_ends}>&-
  exec {cb_both_ends}<>"$cb_dir/readers" {cb_readers_alive}<"$cb_dir/readers" {cb_both_ends}>&-
  cb_start_idle_readers
}

cb_start_idle_readers() {
  # Opened here, not in the readers: cb_readers_alive would be at its end until they have started.
  exec {cb_alive_token}>"$cb_dir/readers"
  exec {cb_out_start}> >(cb_reader out "$cb_out_pipe")
  cb_out_reader=$!
  exec {cb_err_start}> >(exec {cb_out_start}>&-; cb_reader err "$cb_err_pipe")
  cb_err_reader=$!
  exec {cb_alive_token}>&-
}

cb_reader() { # STREAM PIPE: wait for a chunk size, then become split; ends with the channel
  local cb_size
  exec >&"$cb_alive_token" {cb_alive_token}>&- {cb_readers_alive}<&- {cb_events}<&-
  IFS= read -r cb_size || exit
  exec split -b "$cb_size" -a 6 - "$cb_dir/$1." <&"$2"
}

cb_let_readers_read() {
  : >"$cb_dir/out.aaaaaa" >"$cb_dir/err.aaaaaa" && echo yes >"$cb_dir/split" ||
    cb_give_up "$cb_id" "cannot write to $cb_dir"
  echo "$cb_chunk_size" >&"$cb_out_start"
  echo "$cb_chunk_size" >&"$cb_err_start"
  exec {cb_out_start}>&- {cb_err_start}>&-
}

cb_readers_end_within() { # SECONDS: have both readers ended, now or within this time?
  local cb_line
  while :; do
    # Not `while read …`: the status of a loop is that of its body.
    IFS= read -r -t "$1" -u "$cb_readers_alive" cb_line && continue
    (($? <= 128)) # 1 is the end of the pipe; more than 128 is the time limit
    return
  done
}

cb_drain_readers() { # a background process holds the pipes: wait until the readers have read what was written
  local cb_reader_pid cb_probe cb_step
  for cb_reader_pid in "$cb_out_reader" "$cb_err_reader"; do
    exec {cb_probe}<"/proc/$cb_reader_pid/fd/0" || continue
    for ((cb_step = 0; cb_step < 100; cb_step++)); do
      read -r -t 0 -u "$cb_probe" || break
      cb_sleep 0.01
    done
    exec {cb_probe}<&-
  done
  cb_sleep 0.02
}

cb_renew_readers() { # after a long command
  local -n cb_out_files=cb_chunks_out cb_err_files=cb_chunks_err
  : >"$cb_dir/split"
  cb_start_idle_readers
  # The first chunk files are used again, which saves a process.
  ((${#cb_out_files[@]} + ${#cb_err_files[@]} <= 2)) ||
    rm -f -- "${cb_out_files[@]:1}" "${cb_err_files[@]:1}"
}

cb_abandon_readers() { # a background process still writes: leave the folder to a janitor and make another one
  cb_was_abandoned=yes
  cb_janitor "$cb_readers_alive" "$cb_dir" </dev/null >/dev/null &
  exec {cb_out_pipe}<&- {cb_err_pipe}<&- {cb_readers_alive}<&-
  cb_make_dir
}

cb_janitor() { # READERS_ALIVE DIR: throw away what background processes write, until they have ended
  local cb_line
  while :; do
    IFS= read -r -t 1 -u "$1" cb_line
    (($? > 128)) || break
    rm -f -- "$2"/out.?????? "$2"/err.??????
  done
  rm -rf -- "$2"
  rmdir -- "$cb_scratch" # succeeds only after the channel has ended
}

# ---- run: start the command -----------------------------------------------------------------------------------------

cb_handle_run() { # ID MARK TIMEOUT_MS CHUNK_SIZE STDIN_SIZE STDIN_TEXT CWD ENV_COUNT ENV... ARGV...
  cb_id=$1 cb_mark=$2 cb_chunk_size=$4 cb_cwd=$7
  cb_env=("${@:9:$8}")
  cb_argv=("${@:9+$8}")
  cb_store_stdin "$5" "$6" || cb_give_up "$cb_id" "cannot store the input"
  [[ -p $cb_dir/out && -p $cb_dir/err ]] || cb_give_up "$cb_id" "cannot write to $cb_dir"
  cb_read_clock
  cb_started_us=$cb_now_us
  cb_deadline_us=$((cb_now_us + $3 * 1000))
  cb_waiter &
  cb_waiter_pid=$!
  cb_wait_for_event 60000000 || cb_give_up "$cb_id" "cannot start a process"
  cb_command_pid=${cb_event#* }
  cb_has_ended=
  if ! cb_try_quick $(($3 * 1000)); then cb_finish_long; fi
  [[ $cb_stdin == /dev/null ]] || rm -f -- "$cb_stdin"
}

cb_store_stdin() { # SIZE TEXT: sets cb_stdin to a file with the command's input
  cb_stdin=/dev/null
  if (($1)); then
    cb_stdin=$cb_scratch/stdin.$cb_id
    head -c "$1" >"$cb_stdin"
  elif [[ $2 ]]; then
    cb_stdin=$cb_scratch/stdin.$cb_id
    printf %s "$2" >"$cb_stdin"
  fi
}

cb_waiter() { # starts the command and waits for it. Events: "ID PID", then "ID"; its exit status is the command's
  local cb_out_write cb_err_write cb_status
  exec </dev/null >/dev/null {cb_out_write}>"$cb_dir/out" {cb_err_write}>"$cb_dir/err" || exit
  exec {cb_out_pipe}<&- {cb_err_pipe}<&- {cb_readers_alive}<&- {cb_out_start}>&- {cb_err_start}>&-
  set -m # a process group of its own
  (set +m; cb_become_command) &
  set +m # with job control, `wait` would also return when the command is stopped
  echo "$cb_id $!" >&"$cb_events"
  wait $!
  cb_status=$?
  if [[ ! -s $cb_dir/split ]]; then
    # This waits for a reader if a pipe is full. If the readers start just now, the host removes the marker.
    printf '\0%s\0' "$cb_marker_text" >&"$cb_out_write"
    printf '\0%s\0' "$cb_marker_text" >&"$cb_err_write"
  fi
  exec {cb_out_write}>&- {cb_err_write}>&-
  echo "$cb_id" >&"$cb_events"
  exit "$cb_status"
}

cb_become_command() {
  exec >&"$cb_out_write" 2>&"$cb_err_write" <"$cb_stdin"
  exec {cb_out_write}>&- {cb_err_write}>&- {cb_events}<&-
  cd -- "$cb_cwd" || exit 126
  # Not `export`: env(1) takes names that are none for bash, or that bash would treat as its own.
  if ((${#cb_env[@]})); then cb_argv=(env -- "${cb_env[@]}" "${cb_argv[@]}"); fi
  cb_restore_locale
  export COOPERBENCH_COMMAND="$cb_mark"
  unset OLDPWD
  exec -- "${cb_argv[@]}"
}

cb_wait_for_event() { # MICROSECONDS: sets cb_event to the next report about this command; fails at the time limit
  local cb_seconds
  printf -v cb_seconds '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000))
  while IFS= read -r -t "$cb_seconds" -u "$cb_events" cb_event; do
    [[ $cb_event == "$cb_id" || $cb_event == "$cb_id "* ]] && return
  done
  return 1
}

# ---- run: the quick way ---------------------------------------------------------------------------------------------

cb_try_quick() { # TIMEOUT_US: answer if the command ends soon with little output; else leave the rest to cb_finish_long
  local cb_is_whole=yes
  cb_text=([out]='' [err]='') cb_length=([out]=0 [err]=0)
  cb_wait_for_event $(($1 < cb_quick_us ? $1 : cb_quick_us)) || return
  cb_has_ended=yes
  cb_read_to_marker out "$cb_out_pipe" || cb_is_whole=
  cb_read_to_marker err "$cb_err_pipe" || cb_is_whole=
  [[ $cb_is_whole ]] || return
  cb_read_clock
  wait "$cb_waiter_pid"
  printf '= %s %s 0 %s t %s 0 t %s 0\n%b%b. \n' "$cb_id" $? $((cb_now_us - cb_started_us)) \
    "${cb_length[out]}" "${cb_length[err]}" "${cb_text[out]}" "${cb_text[err]}"
}

cb_read_to_marker() { # STREAM PIPE: take the output of a command that has ended; fails if there is or may come more
  local cb_data=''
  # `read -d ''` ends at a NUL byte, at the number of bytes, or (status 1) at the end of the pipe.
  IFS= read -r -d '' -n "$cb_quick_bytes" -u "$2" cb_data || { cb_append "$1" "$cb_data"; return 1; }
  cb_append "$1" "$cb_data"
  ((${#cb_data} < cb_quick_bytes)) || return
  # It ended at a NUL byte: that of the marker, or one of the output.
  IFS= read -r -d '' -n 64 -u "$2" cb_data
  if [[ $cb_data != "$cb_marker_text" ]]; then
    cb_append_nul "$1"
    cb_append "$1" "$cb_data"
    ((${#cb_data} == 64)) || cb_append_nul "$1"
    return 1
  fi
  # Nobody may hold the pipe any more: then it is at its end. `-t 0` fails if it is empty and open.
  read -r -t 0 -u "$2" || return
  IFS= read -r -d '' -n 1 -u "$2" cb_data || return 0
  if [[ $cb_data ]]; then cb_append "$1" "$cb_data"; else cb_append_nul "$1"; fi
  return 1
}

# Output is kept as an argument of printf %b, since variables cannot hold NUL bytes.
cb_append() { # STREAM DATA
  cb_text[$1]+=${2//\\/\\\\}
  cb_length[$1]=$((cb_length[$1] + ${#2}))
}

cb_append_nul() { # STREAM
  cb_text[$1]+=\\0000
  cb_length[$1]=$((cb_length[$1] + 1))
}

# ---- run: the long way ----------------------------------------------------------------------------------------------

cb_finish_long() { # wait for the command, with readers that take its output; answer
  local cb_exit_code cb_timed_out=0 cb_lingers='' cb_statuses=''
  cb_removed=([out]=0 [err]=0)
  cb_let_readers_read
  if cb_wait_for_end; then
    wait "$cb_waiter_pid"
    cb_exit_code=$? # 137 also if the waiter itself was killed
    cb_wait_for_output || cb_lingers=yes
  else
    cb_timed_out=1 cb_exit_code=124
    kill -TERM -- "-$cb_command_pid"
    cb_wait_for_event 2000000
    cb_kill_command "$cb_mark" "$cb_command_pid"
    cb_readers_end_within 2 || cb_lingers=yes
  fi
  cb_read_clock
  cb_collect out
  cb_collect err
  printf '= %s %s %s %s %s %s %s %s %s %s\n' \
    "$cb_id" "$cb_exit_code" "$cb_timed_out" $((cb_now_us - cb_started_us)) \
    "${cb_kind[out]}" "${cb_length[out]}" "${cb_cut[out]}" "${cb_kind[err]}" "${cb_length[err]}" "${cb_cut[err]}"
  cb_print_body out
  cb_print_body err
  printf '. %s\n' "$cb_statuses"
  if [[ $cb_lingers ]]; then cb_abandon_readers; else cb_renew_readers; fi
}

cb_wait_for_end() { # until the command has ended; fails at the deadline
  local cb_left_us cb_pause_us=10000
  while [[ ! $cb_has_ended ]]; do
    cb_read_clock
    cb_left_us=$((cb_deadline_us - cb_now_us))
    ((cb_left_us > 0)) || return
    ((cb_pause_us = cb_pause_us < 500000 ? 2 * cb_pause_us : 1000000))
    cb_wait_for_event $((cb_left_us < cb_pause_us ? cb_left_us : cb_pause_us)) && cb_has_ended=yes
    # `read -t` may lose an event that arrives at its time limit: the end of the waiter says the same.
    kill -0 "$cb_waiter_pid" || cb_has_ended=yes
    cb_remove_middle out
    cb_remove_middle err
  done
}

cb_wait_for_output() { # of a command that has ended; fails if a background process keeps its pipes open
  cb_readers_end_within 0.1 && return
  if cb_is_running "$cb_mark" "$cb_command_pid"; then
    cb_drain_readers
    return 1
  fi
  cb_readers_end_within 10 # nothing but a busy machine is in the way
}

cb_remove_middle() { # STREAM: only the first and the last two chunks can be needed
  local cb_files=("$cb_dir/$1".??????)
  if ((${#cb_files[@]} > 6)); then
    rm -f -- "${cb_files[@]:1:${#cb_files[@]}-3}"
    cb_removed[$1]=$((cb_removed[$1] + ${#cb_files[@]} - 3))
  fi
}

cb_collect() { # STREAM: sets cb_kind, cb_cut and cb_chunks_STREAM; short text is appended to cb_text
  local -n cb_files=cb_chunks_$1
  local cb_data='' cb_last_size
  cb_remove_middle "$1"
  cb_files=("$cb_dir/$1".??????)
  cb_kind[$1]=t cb_cut[$1]=0
  if ((${#cb_files[@]} > 1)); then
    cb_kind[$1]=b
    # Kept: the first chunk and as much from the end. All chunks but the last have the full size.
    cb_last_size=$(wc -c <"${cb_files[-1]}")
    cb_cut[$1]=$(((cb_removed[$1] + ${#cb_files[@]} - 3) * cb_chunk_size + cb_last_size))
    ((cb_cut[$1] > 0)) || cb_cut[$1]=0
  elif [[ -s $cb_dir/$1.aaaaaa ]]; then
    # Fails if the text is whole: it has ended without a NUL byte and within the limit. Then no process is needed.
    if IFS= read -r -d '' -n "$cb_quick_bytes" cb_data <"$cb_dir/$1.aaaaaa"; then
      cb_kind[$1]=b
    else
      cb_append "$1" "$cb_data"
    fi
  fi
}

cb_print_body() { # STREAM: adds to cb_statuses
  local -n cb_files=cb_chunks_$1
  printf %b "${cb_text[$1]}"
  [[ ${cb_kind[$1]} == b ]] || return
  if ((cb_cut[$1])); then
    { cat -- "${cb_files[0]}"; cat -- "${cb_files[@]: -2}" | tail -c "$cb_chunk_size"; } | base64 -w 0
  else
    cat -- "${cb_files[@]}" | base64 -w 0
  fi
  cb_statuses+="${PIPESTATUS[*]} "
  echo
}

# ---- write and read -------------------------------------------------------------------------------------------------

cb_handle_write() { # ID MARK MODE SIZE TEXT PATH
  local cb_log=$cb_scratch/message cb_message=''
  cb_write_file "$2" "$3" "$4" "$5" "$6" 2>"$cb_log"
  case $? in
    0) echo "= $1 ok" ;;
    2) cb_give_up "$1" "cannot write $6" ;;
    *)
      IFS= read -r cb_message <"$cb_log"
      cb_answer_error "$1" failed "${cb_message:-cannot be written}"
      ;;
  esac
}

cb_write_file() { # MARK MODE SIZE TEXT PATH: 1 if it cannot be written, 2 if the raw bytes cannot be read either
  local cb_folder=${5%/*} cb_temporary
  cb_temporary=$cb_folder/.cooperbench-$1
  [[ -d $cb_folder/ ]] || mkdir -p -- "$cb_folder"
  if ! : >"$cb_temporary"; then
    (($3 == 0)) || head -c "$3" >/dev/null || return 2
    return 1
  fi
  if (($3)); then
    head -c "$3" >"$cb_temporary" || { rm -f -- "$cb_temporary"; return 2; }
  else
    printf %s "$4" >"$cb_temporary" || { rm -f -- "$cb_temporary"; return 1; }
  fi
  chmod "$2" -- "$cb_temporary" && mv -fT -- "$cb_temporary" "$5" && return
  rm -f -- "$cb_temporary"
  return 1
}

cb_handle_read() { # ID MAX_BYTES PATH
  [[ -e $3 ]] || { cb_answer_error "$1" missing "no such file"; return; }
  [[ -f $3 ]] || { cb_answer_error "$1" failed "not a regular file"; return; }
  [[ -r $3 ]] || { cb_answer_error "$1" failed "permission denied"; return; }
  echo "= $1 ok"
  head -c "$2" -- "$3" | base64 -w 0
  printf '\n. %s\n' "${PIPESTATUS[*]}"
}

# ---- serve ----------------------------------------------------------------------------------------------------------

cb_check_tools() { # SCRATCH_DIR: the tools must do exactly what the protocol relies on; prints what is wrong
  local cb_tool cb_prefix=$1/self-test
  for cb_tool in split head tail base64 cat wc mkdir mkfifo rm mv chmod env; do
    type -P "$cb_tool" >/dev/null || { echo "$cb_tool is missing"; return 1; }
  done
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "bash is older than 4.4"; return 1; }
  mkdir -p -- "$1" || { echo "cannot write to $1"; return 1; }
  printf abc | { head -c 2 >/dev/null; IFS= read -r -n 1 cb_tool; [[ $cb_tool == c ]]; } ||
    { echo "head -c reads more than it should"; return 1; }
  printf 'a\0b' | split -b 2 -a 6 - "$cb_prefix." && [[ -s $cb_prefix.aaaaaa && -s $cb_prefix.aaaaab ]] ||
    { echo "split does not split"; return 1; }
  [[ $(base64 -w 0 <"$cb_prefix.aaaaaa") == YQA= ]] || { echo "base64 does not take -w 0"; return 1; }
  # By another program: of a shell that may not be read, only root can see it.
  cat /proc/self/environ >/dev/null 2>&1 || { echo "/proc is not mounted"; return 1; }
  rm -f "$cb_prefix."*
}

cb_serve() { # SCRATCH_DIR [trusted]: answer requests until stdin ends
  local cb_line cb_problem
  cb_scratch=$1 cb_dir_count=0 cb_was_abandoned=
  exec {cb_events}<> <(:)
  if [[ ${2-} != trusted ]] && ! cb_problem=$(cb_check_tools "$1"); then
    echo "cooperbench-channel unavailable $cb_problem"
    return 1
  fi
  if ! cb_make_dir; then
    echo "cooperbench-channel unavailable cannot write to $1"
    return 1
  fi
  echo "cooperbench-channel 1 ready"
  while IFS= read -r cb_line; do
    eval "cb_request=($cb_line)" # the host quotes every word
    case ${cb_request[0]} in
      run) cb_handle_run "${cb_request[@]:1}" ;;
      write) cb_handle_write "${cb_request[@]:1}" ;;
      read) cb_handle_read "${cb_request[@]:1}" ;;
      *) cb_give_up 0 "unknown request" ;;
    esac
  done
}

if [[ ${COOPERBENCH_CHANNEL-serve} == serve ]]; then
  exec 2>/dev/null
  cb_serve "$@"
  if [[ $cb_was_abandoned ]]; then
    # The janitor removes the folders that background processes still write to.
    rm -rf -- "$cb_dir" "$1/message"
    rmdir -- "$1"
  else
    rm -rf -- "$1"
  fi
fi
