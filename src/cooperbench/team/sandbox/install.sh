# Makes the folders of the team's commands and puts the commands on the PATH: install.sh TEAM_DIR streams|polled BIN_DIR COMMAND...
set -e
cd "$1"
mkdir -p send inbox responses read sync push tool finished drafts
if [ "$2" = streams ]; then [ -p bell ] || mkfifo bell; else : >polled; fi
bin=$3; shift 3
for name; do
    # The team's tools are one script, which goes by the name that it is called with.
    [ -e "$bin/$name" ] || ln -sf coop "$bin/$name"
    command -v "$name" >/dev/null || ln -sf "$bin/$name" "/usr/local/bin/$name"
    command -v "$name" >/dev/null
done
