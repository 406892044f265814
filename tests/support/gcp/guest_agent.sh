# What Google's guest agent does on a machine, as far as we rely on it: guest_agent.sh ADDRESS
ask() { curl -sf -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"; }

until ask ssh-keys >/dev/null; do sleep 0.05; done # The network is there a little later than the machine.
# The engine's socket is another machine's; its group has to be known here.
groupadd -o -g "$(stat -c %g /var/run/docker.sock)" engine
useradd -m -s /bin/bash -p '*' cooperbench
mkdir -m 700 /home/cooperbench/.ssh
ask ssh-keys | sed -n 's/^cooperbench://p' >/home/cooperbench/.ssh/authorized_keys
chown -R cooperbench: /home/cooperbench/.ssh

mkdir -p /etc/ssh
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
# As strict as Container-Optimized OS, and stricter where our start-up script has to see to it.
cat >/etc/ssh/sshd_config <<CONFIG
ListenAddress $1
HostKey /etc/ssh/ssh_host_ed25519_key
AllowTcpForwarding no
AllowStreamLocalForwarding no
PasswordAuthentication no
PermitRootLogin no
UsePAM no
CONFIG
mkdir -p /run/sshd
/usr/sbin/sshd
ask startup-script >/startup.sh
exec bash /startup.sh >/var/log/startup.log 2>&1
