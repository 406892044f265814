# The harness's end inside the sandbox: what the commands ask for goes up to the harness on stdout, what comes from the
# harness on stdin becomes files. Run by bash, for as long as the agent works: rpc.sh TEAM_DIR LARGEST_REQUEST
cd "$1" || exit 1
# Byte by byte: in other locales half a character before a line feed takes the line feed with it.
export LC_ALL=C
largest=$2
exec 3<>bell 4<&0

# Down: "FOLDER NAME SIZE", a newline, SIZE bytes.
while read -r folder name size; do
    # Whatever was removed here: bytes that have no place would be taken for the next headers.
    [[ -d drafts && -d $folder ]] || mkdir -p drafts "$folder"
    head -c "$size" >"drafts/.down.$$" && mv "drafts/.down.$$" "$folder/$name"
done <&4 >/dev/null &
down=$!

# Up: "VERB NAME CONTENT", with the content, if any, in base64.
up() {
    [[ $2 == *[!A-Za-z0-9]* || -z $2 ]] && return
    case $1 in
        send | push | tool)
            [[ -f $1/$2 && ! -e responses/$2 ]] || return
            printf '%s' "$1 $2 "
            head -c "$largest" "$1/$2" | base64 -w0
            echo
            ;;
        read | sync) echo "$1 $2" ;;
    esac
}
{
    echo "$BASHPID" >rpc.pid
    echo ready
    # What was asked for while this was not running.
    for file in send/* push/* tool/* sync/*; do up "${file%%/*}" "${file##*/}"; done
    while read -r verb name <&3; do up "$verb" "$name"; done
} </dev/null &
up=$!
# The harness closes our stdin to end us; and if either half was killed, it starts us again.
wait -n
kill "$up" "$down" 2>/dev/null
