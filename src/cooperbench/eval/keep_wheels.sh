# Keeps the distributions that pip has fetched, as its log names them, in a folder for PIP_FIND_LINKS.
# Usage: bash keep_wheels.sh LOG FOLDER TESTS. What cannot be had again is left out.
# Then removes log and patches, and what frameworks keep of the tests: whatever is newer than their patch.
log=$1 folder=$2 tests=$3
trap 'find /tmp /var/tmp -xdev -mindepth 1 -newer "$tests" -delete; rm -rf -- "${tests%/*}"/* "$log"' EXIT
mkdir -p "$folder"
[ -s "$log" ] || exit 0
pip=$(command -v pip || command -v pip3) || exit 0
# Of `Downloading https://host/x/name-1.0-py3-none-any.whl (5 kB)` or `Using cached name-1.0.tar.gz`: name==1.0
mapfile -t wanted < <(
  sed -nE 's/.*(Downloading|Using cached) ([^ ]*\/)?([^ \/]+)\.(whl|tar\.gz|zip)( .*)?$/\3.\4/p' "$log" | sort -u |
    sed -E -e 's/^([^-]+)-([^-]+)-.*\.whl$/\1==\2/' -e 's/^(.+)-([^-]+)\.(tar\.gz|zip)$/\1==\2/' | sort -u
)
[ ${#wanted[@]} -gt 0 ] || exit 0
cd /
keep() { "$pip" download --quiet --disable-pip-version-check --no-deps --dest "$folder" "$@" </dev/null >/dev/null 2>&1; }
# All at once is quicker; two versions of one project are wanted one by one.
keep "${wanted[@]}" || for one in "${wanted[@]}"; do keep "$one"; done
exit 0
