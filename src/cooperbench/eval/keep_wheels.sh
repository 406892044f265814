# Keeps the distributions that pip has downloaded, as named in its log, in a folder for PIP_FIND_LINKS.
# Usage: bash keep_wheels.sh LOG FOLDER TESTS_PATCH
# Distributions that cannot be downloaded again are left out.
# At the end, removes the log, the patches, and everything in temporary folders that is newer than
# the patch with the tests: frameworks may have cached something about them.
log=$1 folder=$2 tests_patch=$3

remove_traces() {
  find /tmp /var/tmp -xdev -mindepth 1 -newer "$tests_patch" -delete
  rm -rf -- "${tests_patch%/*}"/* "$log"
}
trap remove_traces EXIT

mkdir -p "$folder"
[ -s "$log" ] || exit 0
pip=$(command -v pip || command -v pip3) || exit 0

# Prints `name==1.0` for each line like `Downloading https://host/x/name-1.0-py3-none-any.whl (5 kB)`
# or `Using cached name-1.0.tar.gz`.
list_requirements() {
  sed -nE 's/.*(Downloading|Using cached) ([^ ]*\/)?([^ \/]+)\.(whl|tar\.gz|zip)( .*)?$/\3.\4/p' "$log" |
    sort -u |
    sed -E -e 's/^([^-]+)-([^-]+)-.*\.whl$/\1==\2/' -e 's/^(.+)-([^-]+)\.(tar\.gz|zip)$/\1==\2/' |
    sort -u
}

download() {
  "$pip" download --quiet --disable-pip-version-check --no-deps --dest "$folder" "$@" \
    </dev/null >/dev/null 2>&1
}

mapfile -t requirements < <(list_requirements)
[ ${#requirements[@]} -gt 0 ] || exit 0
cd /
# One call is faster. It fails if two versions of a project are needed, so then try one by one.
download "${requirements[@]}" || for requirement in "${requirements[@]}"; do download "$requirement"; done
exit 0
