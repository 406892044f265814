# Read by bash in the sandbox before a command that installs a tool bundle, and forgotten after it.
# Some bundles call `pip install`. Where there is no network, pip takes a second for each call to find out that it can do
# nothing; here that is known at once. Whatever pip could do without a network (a package that is there already, a folder
# of wheels) is left to it, and so is everything where there is a network.

_cb_offline() { # No route but to itself; where that cannot be seen there may be one.
    local line
    [ -r /proc/net/route ] || return 1
    if { read -r line && read -r line; } </proc/net/route; then return 1; fi
    [ -r /proc/net/ipv6_route ] || return 0
    while read -r line; do [ "${line##* }" = lo ] || return 1; done </proc/net/ipv6_route
}

_cb_hopeless() { # WORDS of pip's: exit code 3 where it can only fail.
    python3 -c '
import os, re, shutil, sys
from importlib.metadata import PackageNotFoundError, distribution

home = os.path.expanduser("~")
configs = ["/etc/pip.conf", "/etc/xdg/pip/pip.conf", home + "/.pip/pip.conf", home + "/.config/pip/pip.conf"]
configs.append(sys.prefix + "/pip.conf")
variables = ["PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"]
packages = [re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(==[^/]*)?$", word) for word in sys.argv[2:]]
if sys.argv[1:2] != ["install"] or not all(packages):
    sys.exit()
if any(map(os.environ.get, variables)) or any(map(os.path.exists, configs + sys.argv[2:])):
    sys.exit()
for package in packages:
    name = package.group(1)
    try:
        distribution(name)
    except PackageNotFoundError:
        if not shutil.which(name):
            sys.exit(3)
' "$@" 2>/dev/null
}

_cb_pip() { # PROGRAM WORDS
    if _cb_offline; then
        _cb_hopeless "${@:2}"
        if [ $? = 3 ]; then
            echo "$1: not tried, since there is no network in this sandbox: $*" >&2
            return 1
        fi
    fi
    # Behind a firewall that answers nothing, each further try would take as long as the first.
    PIP_RETRIES=${PIP_RETRIES:-0} command "$@"
}

pip() { _cb_pip pip "$@"; }
pip3() { _cb_pip pip3 "$@"; }
