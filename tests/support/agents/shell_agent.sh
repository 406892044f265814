#!/bin/sh
# An agent in plain POSIX shell: it adds the line that its feature asks for, tells its teammate, and listens.
# JSON is written with printf and read with sed, which is enough for what this agent asks.
read -r start
number=$(printf '%s' "$start" | sed -n 's/.*Add a line `feature \([0-9]*\)`.*/\1/p')
number=${number:-1}
place=$((number * 10 - 4))
teammate=$(printf '%s' "$start" | sed -n 's/.*"teammates": \["\([a-z0-9]*\)".*/\1/p')
id=0

ask() { # METHOD PARAMS: the answer is in $answer
    id=$((id + 1))
    printf '{"id": %d, "method": "%s", "params": %s}\n' "$id" "$1" "$2"
    read -r answer || exit 1
    case $answer in
    *'"error"'*)
        printf 'refused: %s\n' "$answer" >&2
        exit 0
        ;;
    esac
}

ask think '{"text": "a line it is"}'
ask reply '{"text": "sed will do", "usage": {"cost": 0.25, "prompt_tokens": 10, "completion_tokens": 2}}'
ask exec "{\"command\": \"sed -i '${place}a feature ${number}' app.txt\"}"
if [ -n "$teammate" ]; then
    ask send_message "{\"to\": \"$teammate\", \"text\": \"I have added line $number \\u2713\"}"
    ask wait_for_message '{"timeout_seconds": 30}'
    ask incoming '{}'
    printf 'heard: %s\n' "$answer" >&2
fi
printf '{"type": "done", "status": "submitted"}\n'
