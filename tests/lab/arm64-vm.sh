#!/bin/bash
# Starts containers on arm64: Debian's kernel, systemd, containerd, runc and crun, in a virtual machine.
#
#   sudo tests/lab/arm64-vm.sh                  Debian 12
#   sudo SUITE=trixie tests/lab/arm64-vm.sh     Debian 13, whose containerd has NRI, and podman
#   sudo PARTS='demo nri' tests/lab/arm64-vm.sh     some of: demo node hook nri podman hostile cold plain
#
# Needs what tests/lab/arm64.sh needs, and on Debian: apt-get install qemu-system-arm cpio e2fsprogs. The processor is
# emulated: an hour or more, a quarter of it for the build, which is made on Debian 12. With BUILT=1 the program of an earlier
# run is there. The root file system is that of arm64.sh, in build/roots/arm64 or $ROOT; that of Debian 13 is beside it. The
# machine's files stay in build/vm, or in $VM. Each line of the result is ok or FAILED, with the time here. Not in CI.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/lab/arm64-vm.sh: run it as root" >&2; exit 2; }
: "${ROOT:=build/roots/arm64}" "${VM:=build/vm}" "${SUITE:=bookworm}" "${PARTS:=demo node hook nri podman hostile cold plain}"
export ROOT
[ -n "${BUILT-}" ] || tests/lab/arm64.sh --build
root=$(realpath "$ROOT")
mkdir -p "$VM"
vm=$(realpath "$VM")
if [ "$SUITE" != bookworm ]; then
  built=$root
  root=$root-$SUITE
  vm=$vm/$SUITE
  mkdir -p "$vm"
  if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    packages=python3,util-linux,procps,busybox-static,runc,crun,podman,systemd-sysv,dbus,udev,kmod,iproute2,containerd,openssl
    debootstrap --arch=arm64 --variant=minbase "--include=$packages" "$SUITE" "$root" "$(tests/mirror.sh)" > "$root.log" 2>&1 ||
      { tail -n 20 "$root.log" >&2; exit 1; }
    touch "$root/.complete"
  fi
  rm -rf "$root/src"
  cp -a "$built/src" "$root"
  rm "$root"/src/packaging/{build,apt}.sh # as in a release's archive: nothing is built there
fi

# -- the kernel: its package would make an initramfs, which qemu-user does not finish
apt="apt-get --quiet --quiet -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
  -o Dir::State=$vm/apt -o Dir::State::status=/dev/null -o Dir::Cache=$vm/apt -o Dir::Etc::SourceParts=/dev/null
  -o Dir::Etc::SourceList=$root/etc/apt/sources.list -o Dir::Etc::TrustedParts=$root/etc/apt/trusted.gpg.d"
mkdir -p "$vm/apt/lists/partial" "$vm/apt/archives/partial"
if [ ! -e "$root/boot/.complete" ]; then
  $apt update
  package=$(apt-cache ${apt#apt-get --quiet --quiet} depends linux-image-arm64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
  rm -rf "$vm/kernel" "$vm"/apt/archives/*.deb
  (cd "$vm/apt/archives" && $apt download "$package")
  dpkg-deb -x "$vm"/apt/archives/*.deb "$vm/kernel"
  cp -a "$vm/kernel/boot" "$root"
  modules=$(find "$vm/kernel" -name modules -path "*/lib/modules" -type d) # in /usr/lib from Debian 13 on
  cp -a "$modules" "$root/usr/lib" # /lib is a link
  touch "$root/boot/.complete"
fi
version=$(basename "$root"/lib/modules/*)
chroot "$root" depmod "$version"

# -- an initramfs that mounts the root
initramfs=$vm/initramfs
rm -rf "$initramfs"
mkdir -p "$initramfs"/{bin,dev,modules,proc,root}
cp "$root/bin/busybox" "$initramfs/bin/busybox"
for module in virtio_pci virtio_blk ext4; do
  chroot "$root" modprobe --set-version "$version" --show-depends $module
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
  cp "$root$path" "$initramfs/modules"
  basename "$path"
done > "$initramfs/order"
cat > "$initramfs/init" <<'INIT'
#!/bin/busybox sh
for module in $(busybox cat /order); do busybox insmod "/modules/$module"; done
busybox mount -t devtmpfs devtmpfs /dev
until [ -b /dev/vda ]; do busybox sleep 1; done
busybox mount -t ext4 /dev/vda /root
exec busybox switch_root /root /sbin/init
INIT
chmod 755 "$initramfs/init"
(cd "$initramfs" && find . | cpio --quiet -H newc -o) > "$vm/arm64.initramfs"

# -- the root file system
echo node > "$root/etc/hostname"
echo '127.0.0.1 localhost node' > "$root/etc/hosts"
echo fuse > "$root/etc/modules-load.d/lab.conf"
: > "$root/etc/fstab"
mkdir -p "$root/etc/containerd" "$root/images"
cat > "$root/etc/containerd/config.toml" <<'CONFIG'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "reassert.test/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
      BinaryName = "/usr/bin/crun"
CONFIG
chroot "$root" systemctl --quiet enable containerd 2> /dev/null
chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer getty@tty1.service \
  serial-getty@ttyAMA0.service 2> /dev/null
cat > "$root/etc/systemd/system/look.service" <<'UNIT'
[Unit]
After=containerd.service
[Service]
Type=oneshot
ExecStart=/bin/bash /look.sh
ExecStopPost=systemctl --no-block poweroff
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyAMA0
[Install]
WantedBy=multi-user.target
UNIT
chroot "$root" systemctl --quiet enable look 2> /dev/null

cat > "$root/compare.py" <<'COMPARE'
import json
import sys

known = {}
if sys.argv[1] != "/dev/null":
    with open(sys.argv[1]) as file:
        known = json.load(file)["cases"]
with open(sys.argv[2]) as file:
    found = {case["id"]: case for case in json.load(file)["cases"]}
tried = [case["result"] for case in found.values() if case["result"] != "not run"]
print(f"{tried.count('held')} held, {tried.count('refused')} refused, of {len(tried)}")
differ = [key for key in known if known[key] != found.get(key, {}).get("result")]
for key in differ:
    print(f"{key}: {found.get(key)}; on x86_64 {known[key]}")
sys.exit(bool(differ))
COMPARE
echo "$PARTS" > "$root/parts"
cat > "$root/look.sh" <<'LOOK'
failed=0
step() { printf '\n== %s\n' "$*"; }
check() { # TEXT COMMAND…: whether it succeeds
  text=$1; shift
  if "$@" > /dev/null 2>&1; then echo "ok      $text"; else echo "FAILED  $text"; failed=1; fi
}
said() { grep -qF -- "$1" /root/said; }
ran() { "$@" > /root/said 2>&1; status=$?; sed 's/^/  | /' /root/said | cut -c 1-300; echo "  | exit status $status"; }
starts() { grep -oE '"(start|cold)":"[a-z]+"' /var/log/reassert/events.jsonl | sort | uniq -c; }
hostile_pod() { # OPTION…: the hostile half, and how the starts were answered
  : > /var/log/reassert/events.jsonl
  tests/hostile-pod/hostile-pod --half hostile --expect /root/expect.json "$@"
}
as_on_amd64() { # TEXT NAME OPTION…: hostile-pod gives what tests/lab/peers/results/NAME.json has, which is of x86_64
  title=$1 name=$2; shift 2
  hostile_pod -o json "$@" > /root/found.json
  ran python3 /compare.py "tests/lab/peers/results/$name.json" /root/found.json
  check "hostile-pod, $title" [ "$status" = 0 ]
  starts
}
holds() { # TEXT OPTION…: hostile-pod finds nothing
  title=$1; shift
  hostile_pod -o json "$@" > /root/found.json
  status=$?
  ran python3 /compare.py /dev/null /root/found.json
  check "hostile-pod, $title" [ "$status" = 0 ]
  starts
}
files() { find /etc /opt /usr/local /usr/lib/systemd -type f -exec sha256sum {} + -o -type l -printf '%l  %p\n' | sort -k 2; }
installed() { # ENGINE ADAPTER OPTION…
  files > /root/before
  engine=$1 adapter=$2; shift 2
  ran ./install.sh --engine "$engine" --adapter "$adapter" "$@"
  check "install --engine $engine --adapter $adapter" [ "$status" = 0 ]
}
uninstalled() {
  ran ./install.sh --uninstall
  check "uninstall" [ "$status" = 0 ]
  files > /root/after
  ran diff /root/before /root/after
  check "/etc, /opt and /usr/local are as before, byte for byte" [ "$status" = 0 ]
  check "no unit failed" sh -c '! systemctl --failed --plain --no-legend | grep reassert'
}
verified() {
  ran reassert verify "$@"
  check "verify, warm starts too" [ "$status" = 0 ]
}

part_demo() {
  for name in runc crun; do
    ran ./install.sh --demo --runtime $name
    check "demo, $name" said "All results are as expected."
  done
}
part_node() { # as `install` comes
  installed containerd runtime
  verified
  ran reassert status
  check "status" [ "$status" = 0 ]
  reassert status -o json > /root/status.json
  check "status -o json, exit status 0" [ $? = 0 ]
  ran python3 -c 'import json; found = json.load(open("/root/status.json")); print(found["state"], found["version"], found["problems"])'
  check "and the same state" said "protected"
  uninstalled
}
part_hook() {
  installed containerd hook
  verified
  ran reassert status
  check "status" [ "$status" = 0 ]
  uninstalled
}
part_nri() {
  case $(containerd --version) in *" 1.6."*) echo "not run: containerd 1.6 has no NRI"; return ;; esac
  installed containerd nri
  verified
  ran reassert status
  check "status" [ "$status" = 0 ]
  holds "containerd, NRI and hook" --cri /run/containerd/containerd.sock --handler runc --image reassert.test/hostile:1
  uninstalled
}
part_podman() {
  command -v podman > /dev/null || { echo "not run: no podman here"; return; }
  podman --version
  installed podman runtime --except handler/crun-wasm # Debian's crun brings it without its library
  verified --engine podman
  ran reassert status
  holds "podman" --docker podman
  uninstalled
}
part_hostile() {
  installed containerd runtime
  for name in runc crun; do
    as_on_amd64 "$name, warm" reassert-wrapper-$name --runtime /opt/reassert/reassert-$name
    check "warm starts" grep -q '"start":"warm"' /var/log/reassert/events.jsonl
  done
  as_on_amd64 "containerd" reassert-containerd --cri /run/containerd/containerd.sock --handler runc --image reassert.test/hostile:1
  uninstalled
}
part_cold() {
  installed containerd runtime
  for name in runc crun; do
    reassert dispatcher --real "$(command -v $name)" > /root/cold-$name
    chmod 755 /root/cold-$name
    as_on_amd64 "$name, cold" reassert-wrapper-$name --runtime /root/cold-$name
  done
  uninstalled
}
part_plain() {
  mkdir -p /var/log/reassert
  for name in runc crun; do as_on_amd64 "plain $name" $name --runtime "$(command -v $name)"; done
}

export HOME=/root LC_ALL=C.UTF-8
cd /src
uname -srvm
runc --version | head -n 1
crun --version | head -n 1
containerd --version
mkdir -p /srv/hostile-pod/ssl/certs /etc/reassert
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null -days 30 -subj /CN=lab \
  -out /srv/hostile-pod/ssl/certs/ca-certificates.crt 2> /dev/null
# As for docs/project/peers.md: one reserved mount.
grep -v ca.pem tests/lab/peers/policy.yaml > /etc/reassert/policy.yaml
tr -d '\n' < tests/hostile-pod/expect.json | sed 's/, *"[^"]*ca.pem": "[^"]*ca.pem"//' > /root/expect.json
python3 -c 'import sys; sys.path[:0] = ["tests", "."]
from pathlib import Path
from e2e.cri.images import write_images
write_images(Path("/images"))'
for image in /images/*.tar; do ctr -n k8s.io images import "$image" > /dev/null; done
for part in $(cat /parts); do
  step "$part"
  part_$part
done
echo "exit status $failed"
LOOK

rm -f "$vm/arm64.img"
truncate -s 6G "$vm/arm64.img"
mke2fs -q -t ext4 -d "$root" "$vm/arm64.img"

# -- the machine. Its clock counts instructions (-icount), so that a deadline is as far for it as for a processor of 1 GHz.
qemu-system-aarch64 -accel tcg -icount shift=0 -machine virt -cpu max,pauth-impdef=on -m 2048 -display none -no-reboot \
  -kernel "$root/boot/vmlinuz-$version" -initrd "$vm/arm64.initramfs" \
  -append "console=ttyAMA0 panic=-1 quiet systemd.show_status=0 mitigations=off" \
  -drive "file=$vm/arm64.img,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci -nic none -monitor none \
  -serial stdio < /dev/null | while IFS= read -r line; do printf '%(%T)T %s\n' -1 "${line%$'\r'}"; done | tee "$vm/arm64.console"
grep -q '^[0-9:]* exit status 0$' "$vm/arm64.console"
