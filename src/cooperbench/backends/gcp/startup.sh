#!/bin/bash
# The first thing on a machine of ours, run as root by Google's guest agent: Docker ready for the user `cooperbench`, whose key
# is in the metadata, the host key told over a way that the network cannot forge, and an end when nobody is connected.
# What it comes to stands in the guest attributes `cooperbench/ready` or `cooperbench/failed`.
user=cooperbench
socket=/var/run/docker.sock
metadata=http://metadata.google.internal/computeMetadata/v1/instance

ask() { curl -sf --retry 5 -H 'Metadata-Flavor: Google' "$metadata/$1"; }
tell() {
  curl -sf --retry 10 --retry-all-errors -X PUT -H 'Metadata-Flavor: Google' --data-binary "$2" \
    "$metadata/guest-attributes/cooperbench/$1" >/dev/null
}
# A harness that was killed deletes nothing. Processors cost most, and end with this; the disk goes with the machine, at its
# maximum run duration, at the harness's next start, or by `cooperbench clean`.
end_when_abandoned() {
  local idle=0 look most
  look=$(ask attributes/cooperbench-look-seconds)
  while sleep "${look:=60}"; do
    stat -c %U /proc/[0-9]* 2>/dev/null | grep -qx "$user"
    case $? in 1) idle=$((idle + look)) ;; *) idle=0 ;; esac
    most=$(ask attributes/cooperbench-idle-seconds)
    ((idle < ${most:-900})) || exec shutdown -h now
  done
}
fail() {
  tell failed "$1"
  end_when_abandoned
  exit 1
}
patiently() { # SECONDS COMMAND...: until it succeeds
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || return 1
    sleep 0.5
  done
}

patiently 180 curl -sf --unix-socket "$socket" http://docker/_ping || fail "Docker does not answer"

# Whoever reaches the metadata server has the machine's identity. Names are resolved there too, so that port stays open.
iptables -w -I DOCKER-USER -d 169.254.169.254 -p tcp ! --dport 53 -j REJECT ||
  fail "the metadata server cannot be closed to containers"

id "$user" >/dev/null 2>&1 || useradd -m -s /bin/bash "$user" || fail "no user $user can be made"
usermod -aG "$(stat -c %G "$socket")" "$user" || fail "$user may not use Docker"

# The first value of a setting counts. One connection carries the channels of all sandboxes of this machine. A server that
# forwards no ports, as that of Container-Optimized OS may be told, forwards no sockets either.
config=/etc/ssh/sshd_config
{
  printf '%s\n' 'AllowTcpForwarding local' 'AllowStreamLocalForwarding local' 'ClientAliveInterval 30'
  cat "$config"
} >"$config.new" && mv "$config.new" "$config"
systemctl reload sshd 2>/dev/null || systemctl reload ssh 2>/dev/null || kill -HUP "$(cat /run/sshd.pid)"
patiently 120 test -s /etc/ssh/ssh_host_ed25519_key.pub || fail "there is no host key"
tell host-key "$(cut -d ' ' -f 1,2 /etc/ssh/ssh_host_ed25519_key.pub)"
tell ready 1

end_when_abandoned
