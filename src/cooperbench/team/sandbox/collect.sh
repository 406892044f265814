# The RPC server for sandboxes without streams, run a few times a second: prints what was asked for and not answered yet, as
# lines "VERB NAME CONTENT" with the content, if any, in base64: collect.sh TEAM_DIR LARGEST_REQUEST [last]
# "last", when an agent is done: a send_message that it left in the background gets half a second to hand over its text.
cd "$1" || exit 1
writing() {
    for file in drafts/*; do [[ -e $file ]] && return; done
    for file in /proc/[0-9]*/comm; do { read -r name <"$file"; } 2>/dev/null && [[ $name == send_message ]] && return; done
    false
}
if [ "${3-}" = last ]; then
    for _ in {1..25}; do
        writing || break
        # Those that wait for a response have handed over theirs.
        for file in send/*; do [[ -f $file && ! -e responses/${file##*/} ]] && break 2; done
        sleep 0.02
    done
fi
# Named first, told last: what was read before somebody asked to be in step is told before that.
syncs=''
for file in sync/*; do [ ! -e "$file" ] || syncs="$syncs ${file##*/}"; done
for file in read/*; do [ ! -e "$file" ] || echo "read ${file##*/}"; done
left=8
for file in send/* push/* tool/*; do
    [ "$left" -gt 0 ] || break
    [ -f "$file" ] && [ ! -e "responses/${file##*/}" ] || continue
    echo "${file%%/*} ${file##*/} $(head -c "$2" "$file" | base64 -w0)"
    left=$((left - 1))
done
for name in $syncs; do [ -e "responses/$name" ] || echo "sync $name"; done
exit 0
