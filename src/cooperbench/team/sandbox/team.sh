# What the team's commands in a sandbox have in common: how to ask the harness for something and to wait for its receipt.
# Sourced by send_message, read_messages and the hook of the team's repository; POSIX sh.
#
# A request is a file in the folder of its kind; its name is rung on the bell. Where the backend has no streams there is
# no bell, but a file `polled`: the harness then looks into the folders a few times a second.
team=/cooperbench/team

nap() { sleep 0.02 2>/dev/null || sleep 1; }

ring() { # VERB NAME. Opened for reading too: else it would wait for ever where nobody listens any more
    # In one write, and on a line of its own whatever somebody else has written before.
    [ ! -p "$team/bell" ] || printf '\n%s %s\n' "$1" "$2" 1<>"$team/bell"
}

carried() { # does anybody listen?
    [ -e "$team/polled" ] && return 0
    read -r courier 2>/dev/null <"$team/courier.pid" && [ -d "/proc/$courier" ]
}

await() { # NAME SECONDS: until the receipt is there; 1: time is up, 2: nobody listens any more
    until_second=$(($(date +%s) + $2)) silent_naps=0
    until [ -e "$team/receipts/$1" ]; do
        # A courier that was killed is started again within a moment.
        if carried; then silent_naps=0; else silent_naps=$((silent_naps + 1)); fi
        [ "$silent_naps" -lt 100 ] || return 2
        [ "$(date +%s)" -lt "$until_second" ] || return 1
        nap
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
    rm -f "$team/sync/$step_name" "$team/receipts/$step_name"
    return "$step_code"
}
