# Installs the packages with which pip builds, so that it need not install them for each build.
# Usage: bash install_build_packages.sh FOLDER
# FOLDER has what pip downloaded. What of it is not installed was used for builds only.
# Prints the names of the packages, or fails if it cannot install exactly these.
set -euo pipefail
folder=$1
pip=$(command -v pip || command -v pip3)

# Prints `name version` for each wheel `name-1.0-py3-none-any.whl`, with the name as pip compares it.
list_wheels() {
  find "$folder" -name '*.whl' -printf '%f\n' | sed -E 's/^([^-]+)-([^-]+)-.*$/\1 \2/' | normalize
}
normalize() {
  sed -E -e 's/^([^ ]+)/\L\1/' -e ':a; s/^([^ ]*)[-_.]+([^ ]* )/\1\x01\2/; ta' -e 's/\x01/-/g' | sort -u
}
list_installed() {
  "$pip" list --disable-pip-version-check --format=freeze | sed 's/==/ /' | normalize | cut -d' ' -f1
}

list_wheels >/tmp/cooperbench-wheels
list_installed >/tmp/cooperbench-installed
missing=$(awk 'NR == FNR { installed[$1]; next } !($1 in installed)' /tmp/cooperbench-installed /tmp/cooperbench-wheels)
rm -f /tmp/cooperbench-wheels /tmp/cooperbench-installed
[ -n "$missing" ]
# Builds may need different versions of a package.
[ -z "$(cut -d' ' -f1 <<<"$missing" | uniq -d)" ]
sed 's/ /==/' <<<"$missing" | xargs "$pip" install --quiet --no-index --find-links "$folder" --no-deps >&2
cut -d' ' -f1 <<<"$missing"
