#!/bin/bash
# Installs reassert on a machine that enforces SELinux, and looks at what each domain may do: Debian 13's kernel, policy
# (selinux-policy-default) and containerd, in a virtual machine.
#
#   sudo tests/lab/selinux.sh
#
# Needs a frozen build and its package (packaging/build.sh && packaging/deb/build.sh), and on Debian: apt-get install
# debootstrap qemu-system-x86 e2fsprogs openssh-client. With a /dev/kvm that works, ACCEL=kvm; else the processor is emulated,
# which takes more than an hour. The root file system stays in build/vm/selinux. Each line of the result is ok or FAILED. Not
# in CI.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/lab/selinux.sh: run it as root" >&2; exit 2; }
for needed in dist/reassert/reassert dist/reassert_*.deb; do
  [ -e "$needed" ] ||
    { echo "tests/lab/selinux.sh: no $needed: run packaging/build.sh && packaging/deb/build.sh" >&2; exit 2; }
done
: "${ACCEL:=tcg,tb-size=512}" "${PORT:=2222}" "${VM:=build/vm}"
# The clock of an emulated machine counts instructions (-icount): else its agent is too slow for a start, and each is cold.
case $ACCEL in kvm) pace="-smp 2" ;; *) pace="-smp 1 -icount shift=0" ;; esac
mkdir -p "$VM"
vm=$(realpath "$VM")
root=$vm/selinux
packages=systemd,systemd-sysv,dbus,udev,kmod,linux-image-amd64,selinux-basics,selinux-policy-default,selinux-utils
packages=$packages,policycoreutils,policycoreutils-python-utils,auditd,containerd,runc,crun,busybox-static,openssl
packages=$packages,ca-certificates,procps,iproute2,python3,openssh-server,podman

# -- the root file system: labelled here, so that the first boot enforces
if [ ! -e "$root/.complete" ]; then
  rm -rf "$root"
  debootstrap --variant=minbase "--include=$packages" trixie "$root" "$(tests/mirror.sh)" > "$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
  touch "$root/.complete"
fi
[ -e "$vm/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$vm/key"
rm -rf "$root/root"
mkdir -p "$root/root/.ssh" "$root/root/images" "$root/root/reassert/dist" "$root/root/reassert/packaging/deb" "$root/etc/containerd"
cp "$vm/key.pub" "$root/root/.ssh/authorized_keys"
chmod 700 "$root/root" "$root/root/.ssh"
echo node > "$root/etc/hostname"
echo '127.0.0.1 localhost node' > "$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"
sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$root/etc/selinux/config"
printf '[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n' > "$root/etc/systemd/network/80-dhcp.network"
chroot "$root" systemctl --quiet enable systemd-networkd ssh containerd auditd 2> /dev/null
chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer fstrim.timer man-db.timer \
  systemd-networkd-wait-online.service 2> /dev/null
cat > "$root/etc/containerd/config.toml" <<'CONFIG'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_selinux = true
  sandbox_image = "reassert.test/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
      BinaryName = "/usr/bin/crun"
CONFIG
PYTHONPATH=tests:. build/venv-test/bin/python -B -c '
import sys
from pathlib import Path
from e2e.cri.images import write_images
write_images(Path(sys.argv[1]))' "$root/root/images"
cp -a dist/reassert "$root/root/reassert/dist"
cp packaging/demo.sh packaging/extras.sh "$root/root/reassert/packaging"
cp packaging/deb/reassert.8 "$root/root/reassert/packaging/deb"
cp -R install.sh config dist/reassert_*.deb "$root/root/reassert"

# -- what is looked at, by root of the machine, who is unconfined_t
cat > "$root/root/look.sh" <<'LOOK'
exec < /dev/null 2>&1
failed=0
step() { printf '\n== %s\n' "$*"; since=$(date +%T); }
check() { # TEXT COMMAND…: whether it succeeds
  text=$1; shift
  if "$@" > /dev/null 2>&1; then echo "ok      $text"; else echo "FAILED  $text"; failed=1; fi
}
said() { grep -qF -- "$1" /root/said; }
ran() { "$@" > /root/said 2>&1; status=$?; sed 's/^/  | /' /root/said | cut -c 1-600; echo "  | exit status $status"; }
has_label() { [ "$(stat -c %C "$1" | cut -d: -f3)" = "$2" ]; }
denied() { ausearch -m avc -ts "$since" 2>/dev/null | grep denied | grep -E 'dockerd_t|podman_(conmon_)?t'; }
show_denied() {
  denied | sed -E 's/.*(denied)/\1/; s/ (pid|ino)=[0-9]+//g; s/[0-9a-f]{64}/ID/g' | sort | uniq -c | sort -rn | head -n 12
}
starts() { grep -oE '"(adapter|start|cold)":"[a-z]+"' /var/log/reassert/events.jsonl | sort | uniq -c; }
by_unit() { # COMMAND…: as a unit does it, which is not unconfined_t; what it said is in the journal
  units=$((${units-0} + 1))
  systemd-run --quiet --wait --collect "--unit=lab-$units" "$@" < /dev/null > /dev/null 2>&1
  status=$?
  journalctl --unit="lab-$units" -o cat --no-pager > /root/said
  sed 's/^/  | /' /root/said | cut -c 1-300; echo "  | exit status $status"
}
cd /root/reassert
for image in /root/images/*.tar; do ctr -n k8s.io images import "$image" > /dev/null; done
check "the machine enforces" [ "$(getenforce)" = Enforcing ]
check "containerd is dockerd_t" sh -c 'ps -eZ | grep -q ":dockerd_t:.*containerd"'

step "install as it comes: the engine may not execute what lies in /opt"
ran ./install.sh --engine containerd
check "it fails" [ "$status" = 1 ]
check "it says why" said "/opt/reassert/reassert-crun: permission denied"
check "everything is as it was" said "Everything is as it was before."
show_denied

step "the labels of docs/hardened.md, then install"
semanage import <<'LABELS'
fcontext -a -t bin_t '/opt/reassert(/.*)?'
fcontext -a -t container_engine_exec_t '/opt/reassert/reassert-[^/]*'
fcontext -a -t container_engine_exec_t '/opt/reassert/[^/]*/front'
fcontext -a -t container_var_lib_t '/var/lib/reassert(/.*)?'
fcontext -a -t container_log_t '/var/log/reassert(/.*)?'
fcontext -a -t container_runtime_t '/run/reassert(/.*)?'
fcontext -a -t container_file_t '/var/lib/reassert/trust(/.*)?'
LABELS
for domain in dockerd_t podman_t; do
  echo "(allow $domain initrc_t (unix_stream_socket (connectto)))"
done > /root/reassert.cil
check "the module for the agent's socket" semodule -i /root/reassert.cil
mkdir -p /var/lib/reassert/trust /var/log/reassert
restorecon -R /var/lib/reassert /var/log/reassert
ran ./install.sh --engine containerd
check "it succeeds" [ "$status" = 0 ]
for file in reassert start; do
  check "/opt/reassert/$file is bin_t" has_label "$(realpath /opt/reassert/$file)" bin_t
done
for file in front reassert-runc reassert-crun reassert-hook; do
  check "/opt/reassert/$file is container_engine_exec_t" has_label "$(realpath /opt/reassert/$file)" container_engine_exec_t
done
check "the store is container_var_lib_t" has_label /var/lib/reassert/.lock container_var_lib_t
check "the event log is container_log_t" has_label /var/log/reassert/events.jsonl container_log_t
check "the agent's socket is container_runtime_t" has_label /run/reassert/agent/agent.sock container_runtime_t
check "the agent is initrc_t" sh -c 'ps -eZ | grep -q ":initrc_t:.*reassert"'
show_denied

step "files that containers may read"
mkdir -p /srv/ca/certs
openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -out /srv/ca/one.pem -days 30 -subj /CN=x 2> /dev/null
cp /srv/ca/one.pem /srv/ca/certs/ca-certificates.crt
chmod 644 /srv/ca/one.pem /srv/ca/certs/*
chcon -R -t container_file_t /srv/ca
cat > /etc/reassert/policy.yaml <<'POLICY'
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: lab}
spec:
  mode: Enforce
  rules:
  - name: ca
    env: [{name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}]
    mounts:
    - {hostPath: /srv/ca/certs, mountPath: /etc/ssl/certs, readOnly: true}
    - {hostPath: /srv/ca/one.pem, mountPath: /etc/pki/one.pem, readOnly: true}
POLICY
ran reassert verify
check "exit status 0, so warm starts too" [ "$status" = 0 ]
show_denied
check "events of the engine's domain are in the log" grep -q '"adapter":"runtime"' /var/log/reassert/events.jsonl

step "a file that the engine's domain may mount and containers may not read"
cat > /root/site.cil <<'MODULE'
(type site_ca_t)
(roletype object_r site_ca_t)
(typeattributeset file_type (site_ca_t))
(allow dockerd_t site_ca_t (file (getattr open read mounton)))
(allow unconfined_t site_ca_t (file (getattr open read relabelto relabelfrom)))
MODULE
check "the module for a type of the site's own" semodule -i /root/site.cil
chcon -t site_ca_t /srv/ca/one.pem
ran reassert verify
check "exit status 4" [ "$status" = 4 ]
check "verify names both labels" said "the process is system_u:system_r:container_t"
check "and the command" said 'semanage fcontext -a -t container_file_t /srv/ca/one.pem && restorecon -R /srv/ca/one.pem'
show_denied

step "a file that the engine's domain may not look at"
chcon -t user_home_t /srv/ca/one.pem
ran reassert verify
check "no container starts" [ "$status" = 1 ]
check "and verify says why" said "/srv/ca/one.pem: Permission denied"
chcon -t container_file_t /srv/ca/one.pem

step "status, uninstall"
ran reassert status
ran ./install.sh --uninstall
check "it succeeds" [ "$status" = 0 ]
check "containerd's file is as before, with its label" sh -c \
  'grep -q reassert- /etc/containerd/config.toml; [ $? = 1 ] && stat -c %C /etc/containerd/config.toml | grep -q container_config_t'
show_denied

step "NRI and hook"
: > /var/log/reassert/events.jsonl
ran ./install.sh --engine containerd --adapter nri
check "it succeeds" [ "$status" = 0 ]
ran reassert verify
check "exit status 0" [ "$status" = 0 ]
ran reassert status
check "the plugin is connected" said "NRI plugin connected"
starts
ran ./install.sh --uninstall
show_denied

step "podman"
for image in /root/images/*.tar; do by_unit podman load --quiet --input "$image"; done # by root's shell its locks would be unconfined_t's
: > /var/log/reassert/events.jsonl
ran ./install.sh --engine podman --except handler/crun-wasm
check "it succeeds" [ "$status" = 0 ]
ran reassert verify --engine podman
check "exit status 0" [ "$status" = 0 ]
starts
rm -f /dev/shm/libpod_lock /run/lock/netavark.lock
restorecon -R /run /var/lib/containers
by_unit podman run --rm --network none --entrypoint sh reassert.test/hostile:1 -c \
  'cat /proc/self/attr/current; echo; env | grep BUNDLE; head -n 1 /etc/pki/one.pem'
check "a container of a unit is container_t" said ":container_t:"
check "it has the policy's env" said "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
check "it can read the CA" said "BEGIN CERTIFICATE"
ran ./install.sh --uninstall
show_denied

step "the package"
semanage import <<'LABELS'
fcontext -a -t bin_t '/usr/lib/reassert(/.*)?'
fcontext -a -t container_engine_exec_t '/usr/lib/reassert/[^/]*/front'
LABELS
ran dpkg --install reassert_*.deb
check "dpkg labels it" has_label "$(realpath /usr/lib/reassert/current/front)" container_engine_exec_t
: > /var/log/reassert/events.jsonl
ran reassert install --engine containerd
check "it succeeds" [ "$status" = 0 ]
check "/opt/reassert/reassert-runc is container_engine_exec_t" has_label /opt/reassert/reassert-runc container_engine_exec_t
ran reassert verify
check "exit status 0" [ "$status" = 0 ]
starts
ran reassert uninstall
check "uninstall" [ "$status" = 0 ]
show_denied
exit $failed
LOOK

chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts / > /dev/null 2>&1
rm -f "$vm/selinux.img"
truncate -s 6G "$vm/selinux.img"
mke2fs -q -t ext4 -d "$root" "$vm/selinux.img"

# -- the machine: one that a killed run left is not looked for
# shellcheck disable=SC2086  # a list
qemu-system-x86_64 -accel "$ACCEL" $pace -machine q35 -cpu max,-la57 -m 3072 -display none -vga none -no-reboot \
  -kernel "$root"/boot/vmlinuz-* -initrd "$root"/boot/initrd.img-* \
  -append "root=/dev/vda rw console=ttyS0 panic=-1 security=selinux selinux=1 enforcing=1 audit=1 mitigations=off" \
  -drive "file=$vm/selinux.img,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci \
  -nic "user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:$PORT-:22" -serial "file:$vm/selinux.console" -monitor none &
machine=$!
trap 'kill $machine 2> /dev/null || :' EXIT
machine_runs() {
  ssh -q -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=60 -i "$vm/key" -p "$PORT" root@127.0.0.1 "$@"
}
until machine_runs systemctl is-active containerd > /dev/null; do
  kill -0 $machine || { tail -n 20 "$vm/selinux.console" >&2; exit 1; }
  sleep 2
done
machine_runs uname -r
machine_runs bash /root/look.sh
