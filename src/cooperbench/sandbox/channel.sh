# The inside end of a CooperBench channel: reads requests on stdin, answers on stdout, for as long as stdin is open.
# Usage: bash channel.sh SCRATCH_DIR        (needs bash >= 4.4 and coreutils; channel.py is the other end)
#
# A request is one line of quoted words, optionally followed by raw bytes. Each command runs in a fresh process of
# its own process group. Its output goes through pipes into chunk files written by split(1), which keeps nothing
# back: that is what makes the output so far available although a background process still holds the pipe, counts
# what is cut exactly, and never lets a writer die of SIGPIPE. All processes of a command carry
# COOPERBENCH_COMMAND=<mark> in their environment, by which those that left the process group are found.
#
# run   ID MARK TIMEOUT_MS CHUNK STDIN_SIZE STDIN_TEXT CWD N ENV*N ARGV...             (+ STDIN_SIZE bytes)
# write ID MARK MODE SIZE TEXT PATH                                                     (+ SIZE bytes)
# read  ID MAX PATH
# Answers: "= ID ..." or "! ID KIND LENGTH" and a message. A body is raw with a known length (t) or one line of
# base64 (b); the closing line carries the exit codes of what produced it.

shopt -s nullglob
cb_had_lc_all=${LC_ALL+yes}
cb_lc_all=${LC_ALL-}
LC_ALL=C
cb_wait=(wait)
((BASH_VERSINFO[0] >= 5)) && cb_wait=(wait -f)

cb_now_us() { # sets cb_now; whole seconds where bash is older than 5
  if [[ ${EPOCHREALTIME-} ]]; then cb_now=${EPOCHREALTIME/./}; else cb_now=$((SECONDS * 1000000)); fi
}

cb_self_test() { # the tools must do exactly what the protocol relies on; prints what is wrong
  local tool name=$1/self-test
  for tool in split head tail base64 cat wc mkdir rm mv chmod env; do
    type -P "$tool" >/dev/null || { echo "$tool is missing"; return 1; }
  done
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "bash is older than 4.4"; return 1; }
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
    IFS= read -r -t 0.005 -u "$cb_never" variable
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

cb_new_dir() { # a folder for output that no reader of an earlier command writes to
  cb_dir=$cb_scratch/$((++cb_dirs))
  [[ -d $cb_dir ]] || mkdir -p -- "$cb_dir"
}

cb_janitor() { # CTL DIR: as long as background processes write, keep throwing away what they wrote
  local rest
  while :; do
    IFS= read -r -t 1 -u "$1" rest
    (($? > 128)) || break
    rm -f -- "$2"/*
  done
  rm -rf -- "$2"
  rmdir -- "$cb_scratch" # succeeds for the last one, when the channel has gone before
}

cb_at_eof() { # CTL SECONDS: has everything that holds the control pipe ended, now or within this time?
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
  exec >&"$cb_out" 2>&"$cb_err" <"$cb_input"
  exec {cb_out}>&- {cb_err}>&- {cb_never}<&-
  cd -- "${cb_words[7]}" || exit 126
  ((count)) && prefix=(env -- "${cb_words[@]:9:count}")
  set -- "${prefix[@]}" "${cb_words[@]:9+count}"
  if [[ $cb_had_lc_all ]]; then LC_ALL=$cb_lc_all; else unset LC_ALL; fi
  export COOPERBENCH_COMMAND="${cb_words[2]}"
  unset OLDPWD
  exec -- "$@"
}

cb_command() { # runs with stdout on the control pipe: the pids, a line at the end; EOF once all output is read
  local chunk=${cb_words[4]} out_reader err_reader
  exec </dev/null
  exec {cb_out}> >(exec split -b "$chunk" -a 6 - "$cb_dir/o.")
  out_reader=$!
  exec {cb_err}> >(exec {cb_out}>&-; exec split -b "$chunk" -a 6 - "$cb_dir/e.")
  err_reader=$!
  set -m
  (set +m; cb_exec) &
  exec {cb_out}>&- {cb_err}>&-
  echo "$! $out_reader $err_reader"
  "${cb_wait[@]}" $!
  echo $? >"$cb_dir/code"
  echo
}

cb_drain() { # a background process holds the pipes: wait until what was written has been read
  local reader probe step
  for reader in "$@"; do
    exec {probe}<"/proc/$reader/fd/0" || continue
    for ((step = 0; step < 100; step++)); do
      read -r -t 0 -u "$probe" || break
      IFS= read -r -t 0.01 -u "$cb_never"
    done
    exec {probe}<&-
  done
  IFS= read -r -t 0.02 -u "$cb_never"
}

cb_collect() { # PREFIX CHUNK REMOVED: sets cb_kind, cb_text, cb_length, cb_cut, cb_files
  local last_size
  cb_files=("$cb_dir/$1".??????)
  cb_cut=0 cb_text=
  if ((${#cb_files[@]} <= 1)); then
    cb_kind=t
    if [[ -s $cb_dir/$1.aaaaaa ]]; then
      # Succeeds only at a NUL byte or at the length limit; a text that ends before is whole and needs no process.
      IFS= read -r -d '' -n 4096 cb_text <"$cb_dir/$1.aaaaaa" && cb_kind=b cb_text=
    fi
    cb_length=${#cb_text}
    return
  fi
  cb_kind=b cb_length=0
  last_size=$(wc -c <"${cb_files[-1]}")
  cb_cut=$((($3 + ${#cb_files[@]} - 3) * $2 + last_size))
  ((cb_cut > 0)) || cb_cut=0
}

cb_body() { # CHUNK: the output as one line of base64
  if ((cb_cut)); then
    { cat -- "${cb_files[0]}"; cat -- "${cb_files[@]: -2}" | tail -c "$1"; } | base64 -w 0
  else
    cat -- "${cb_files[@]}" | base64 -w 0
  fi
  cb_status+="${PIPESTATUS[*]} "
  echo
}

cb_run() {
  local id=${cb_words[1]} mark=${cb_words[2]} chunk=${cb_words[4]} size=${cb_words[5]}
  local ctl pids pid code='' timed_out=0 started deadline left slice rest header
  local out_kind out_text out_length out_cut out_files err_text err_files lingers='' cb_status=''
  cb_input=/dev/null cb_removed_out=0 cb_removed_err=0
  if ((size)) || [[ ${cb_words[6]} ]]; then
    cb_input=$cb_scratch/stdin.$id
    if ((size)); then head -c "$size" >"$cb_input"; else printf %s "${cb_words[6]}" >"$cb_input"; fi ||
      cb_give_up "$id" "cannot store the input"
  fi
  : >"$cb_dir/o.aaaaaa" >"$cb_dir/e.aaaaaa" >"$cb_dir/code" || cb_give_up "$id" "cannot write to $cb_dir"
  cb_now_us
  started=$cb_now deadline=$((cb_now + ${cb_words[3]} * 1000))
  exec {ctl}< <(cb_command) || cb_give_up "$id" "cannot start a process"
  IFS= read -r -t 60 -u "$ctl" pids || cb_give_up "$id" "cannot start a process"
  pid=${pids%% *}
  while :; do
    left=$((deadline - cb_now))
    ((left > 0)) || { timed_out=1; break; }
    ((left > 1000000)) && left=1000000
    printf -v slice '%d.%06d' $((left / 1000000)) $((left % 1000000))
    IFS= read -r -t "$slice" -u "$ctl" rest
    (($? > 128)) || break
    # A read that runs out of time may have swallowed the line: only the file says for certain.
    [[ -s $cb_dir/code ]] && break
    cb_trim
    cb_now_us
  done
  if ((timed_out)); then
    kill -TERM -- "-$pid"
    IFS= read -r -t 2 -u "$ctl" rest
    cb_kill_marked "$mark" "$pid"
    code=124
    cb_at_eof "$ctl" 2 || lingers=yes
  else
    IFS= read -r code <"$cb_dir/code"
    code=${code:-137} # none: what waited for the command was itself killed
    if ! cb_at_eof "$ctl" 0.1; then
      if cb_survivors "$mark" "$pid"; then
        cb_drain ${pids#* }
        lingers=yes
      else
        cb_at_eof "$ctl" 10 || lingers=yes # only a busy machine is in the way
      fi
    fi
  fi
  cb_now_us
  cb_trim
  cb_collect o "$chunk" "$cb_removed_out"
  out_kind=$cb_kind out_text=$cb_text out_length=$cb_length out_cut=$cb_cut out_files=("${cb_files[@]}")
  cb_collect e "$chunk" "$cb_removed_err"
  err_text=$cb_text err_files=("${cb_files[@]}")
  header="= $id $code $timed_out $((cb_now - started)) $out_kind $out_length $out_cut $cb_kind $cb_length $cb_cut"
  if [[ $out_kind$cb_kind == tt ]]; then
    printf '%s\n%s%s. \n' "$header" "$out_text" "$err_text"
  else
    printf '%s\n%s' "$header" "$out_text"
    local err_kind=$cb_kind err_cut=$cb_cut
    cb_files=("${out_files[@]}") cb_cut=$out_cut
    [[ $out_kind == b ]] && cb_body "$chunk"
    cb_files=("${err_files[@]}") cb_cut=$err_cut
    printf %s "$err_text"
    [[ $err_kind == b ]] && cb_body "$chunk"
    printf '. %s\n' "$cb_status"
  fi
  [[ $cb_input == /dev/null ]] || rm -f -- "$cb_input"
  if [[ $lingers ]]; then
    cb_lingered=yes
    cb_janitor "$ctl" "$cb_dir" </dev/null >/dev/null &
    cb_new_dir
  elif ((${#out_files[@]} + ${#err_files[@]} > 2)); then
    rm -f -- "${out_files[@]:1}" "${err_files[@]:1}"
  fi
  exec {ctl}<&-
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
  exec {cb_never}<> <(:) # nothing ever comes from here: reading it with a time limit is a sleep without a process
  cb_new_dir || { echo "cooperbench-channel unavailable cannot write to $1"; return 1; }
  if [[ ${2-} != trusted ]] && ! problem=$(cb_self_test "$cb_scratch"); then
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
