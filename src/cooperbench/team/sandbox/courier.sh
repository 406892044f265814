# The harness's end inside the sandbox: what the commands drop into the outbox goes up to the harness on stdout, what
# comes from the harness on stdin becomes files. Run by bash, for as long as the agent works.
cd "$1" || exit 1
exec 3<>bell 4<&0

# Down: "FOLDER NAME SIZE", a newline, SIZE bytes.
while read -r folder name size; do
    head -c "$size" >"drafts/.down" && mv "drafts/.down" "$folder/$name"
done <&4 &
down=$!

# Up: "send NAME SIZE", a newline, the message in base64, a newline; "read NAME 0".
{
    echo ready
    while read -r verb name <&3; do
        [[ $name == *[!A-Za-z0-9]* || -z $name ]] && continue
        case $verb in
            send)
                [[ -f outbox/$name ]] || continue
                echo "send $name"
                base64 -w0 "outbox/$name"
                echo
                ;;
            read) echo "read $name" ;;
        esac
    done
} &
up=$!
# The harness closes our stdin to end us.
wait "$down"
kill "$up" 2>/dev/null
