# What the team's commands in a sandbox have in common: how to ask the harness for something and to wait for its response.
# Sourced by send_message, read_messages and the hook of the team's repository; POSIX sh.
#
# A request is a file in the folder of its kind; its name is rung on the bell. Where the backend has no streams there is
# no bell, but a file `polled`: the harness then looks into the folders a few times a second.
# Where several agents share the sandbox, a variable of each agent's commands names its folder.
team=${COOPERBENCH_TEAM:-/cooperbench/team}

# Waiting: short naps first, longer ones the longer it lasts, and a look at the clock about once a second. Every nap and
# every look starts a process, of which many that wait in one sandbox would leave no time for anything else.
begin_waiting() { # SECONDS
    wait_seconds=$1 wait_end='' nap_ms=10 since_clock_ms=0
}

nap() { # 1 when the time is up
    nap_text=$((1000 + nap_ms))
    sleep "0.${nap_text#1}" 2>/dev/null || { nap_ms=1000; sleep 1; }
    since_clock_ms=$((since_clock_ms + nap_ms)) napped_ms=$nap_ms
    nap_ms=$((nap_ms + nap_ms / 4))
    [ "$nap_ms" -le 500 ] || nap_ms=500
    if [ "$since_clock_ms" -ge 1000 ]; then
        since_clock_ms=0 clock=$(date +%s)
        [ -n "$wait_end" ] || wait_end=$((clock - 1 + wait_seconds))
        [ "$clock" -lt "$wait_end" ] || return 1
    fi
}

ring() { # VERB NAME. Opened for reading too: else it would wait for ever where nobody listens any more
    # In one write, and on a line of its own whatever somebody else has written before.
    [ ! -p "$team/bell" ] || printf '\n%s %s\n' "$1" "$2" 1<>"$team/bell"
}

carried() { # does anybody listen?
    [ -e "$team/polled" ] && return 0
    read -r pid 2>/dev/null <"$team/rpc.pid" && [ -d "/proc/$pid" ]
}

await() { # NAME SECONDS: until the response is there; 1: time is up, 2: nobody listens any more
    begin_waiting "$2"
    silent_ms=0
    until [ -e "$team/responses/$1" ]; do
        # One that was killed is started again within a moment.
        [ "$silent_ms" -lt 2000 ] || return 2
        nap || { [ -e "$team/responses/$1" ]; return; }
        if carried; then silent_ms=0; else silent_ms=$((silent_ms + napped_ms)); fi
    done
}

why_not() { # CODE SECONDS: what `await` came back with, for people
    if [ "$1" = 2 ]; then echo "the harness no longer listens in this sandbox"
    else echo "the harness has not answered within $2 seconds"; fi
}

in_step() { # until everything that was rung before is known to the harness, and what it sent before is here
    step_draft=$(mktemp "$team/drafts/XXXXXXXXXX") || return 1
    step_name=${step_draft##*/}
    mv "$step_draft" "$team/sync/$step_name" || return 1
    ring sync "$step_name"
    await "$step_name" 20
    step_code=$?
    rm -f "$team/sync/$step_name" "$team/responses/$step_name"
    return "$step_code"
}
