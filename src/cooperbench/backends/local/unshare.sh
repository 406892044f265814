# Builds a sandbox's root and enters it: the fallback where bubblewrap cannot be had. Runs as the first process of new
# user, mount, pid, ipc, uts, cgroup (and network) namespaces, with all capabilities in them and none outside.
# Usage: unshare.sh MOUNTS_SCRIPT ROOT COMMAND...
#
# What bubblewrap does by itself is done here by hand, in this order: nothing propagates out, /proc and /dev are made,
# MOUNTS_SCRIPT mounts the rest, user namespaces are closed, the old root goes away, and all capabilities are dropped
# for good before COMMAND starts.
set -euo pipefail
mounts=$1 root=$2
shift 2

mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,bind,nosuid,nodev "$root"
cd "$root"
mkdir -p proc dev .old

bind_read_only() {
  point "$1" "$2"
  mount --rbind -- "$1" "$root$2"
  read_only "$root$2"
}
bind_writable() {
  point "$1" "$2"
  mount --bind -- "$1" "$root$2"
}
point() { # a mount needs something of the same kind to lie on
  if [[ -d $1 ]]; then mkdir -p -- "$root$2"; elif [[ ! -e $root$2 ]]; then
    mkdir -p -- "$(dirname -- "$root$2")"
    : >"$root$2"
  fi
}
read_only() { # with the flags that the kernel locked, else it refuses; and everything mounted below it
  local target=$1 point options flag flags
  while read -r _ _ _ _ point options _; do
    printf -v point %b "$point"
    [[ $point == "$target" || $point == "$target"/* ]] || continue
    flags=remount,bind,ro
    for flag in nosuid nodev noexec noatime nodiratime relatime; do
      [[ ,$options, == *,$flag,* ]] && flags+=,$flag
    done
    mount -o "$flags" -- "$point"
  done </proc/self/mountinfo
}
overlay() { mkdir -p -- "$root$4"; mount -t overlay -o "userxattr,lowerdir=$1,upperdir=$2,workdir=$3" overlay "$root$4"; }
hide() { mount -t tmpfs -o size=4096,mode=755,nosuid,nodev,ro tmpfs "$root$1"; }

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for node in null zero full random urandom tty; do
  : >"$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
  mount -o remount,bind,ro,nosuid,noexec "$root/dev/$node" # the node is the host's: no chmod from inside
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts "$root/dev/pts"
mount -t tmpfs -o size=2g,mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
ln -s pts/ptmx "$root/dev/ptmx"

. "$mounts"

echo 0 >/proc/sys/user/max_user_namespaces
mount -o remount,bind,ro,nosuid "$root/dev"

pivot_root "$root" "$root/.old"
cd /
umount -l /.old
rmdir /.old
hostname sandbox 2>/dev/null || echo sandbox >/proc/sys/kernel/hostname 2>/dev/null || true
exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --securebits=+noroot,+noroot_locked \
  --no-new-privs --pdeathsig=KILL -- "$@"
