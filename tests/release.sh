#!/bin/sh
# Try the archive of a release on each Debian: the demo (wrapper, hook and mounts under the Debian's own runc) in 11, 12, 13
# and sid, and a test of each adapter with the containerd of 12, 13 and sid.
#
#   sudo tests/release.sh build/release/VERSION/reassert-VERSION-linux-ARCH.tar.gz
#
# Needs what `sudo tests/run.sh` has set up. Makes build/roots/bullseye.
set -eu
[ $# -eq 1 ] || { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
archive=$(realpath "$1")
cd "$(dirname "$0")/.."
name=$(basename "$archive" .tar.gz)
tests/roots.sh bullseye bookworm trixie forky
work=$(mktemp -d /var/lib/reassert-release.XXXXXX)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$archive"
program=$work/$name/dist/reassert

echo "Symbols of glibc:"
newest=$(find "$program" -type f \( -name reassert -o -name '*.so' -o -name '*.so.*' \) -exec objdump -T {} + 2> /dev/null |
  sed -n 's/.*[ (]GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
echo "   the newest is $newest"
[ "$(printf '%s\n2.31\n' "$newest" | sort -V | tail -n 1)" = 2.31 ] || { echo "newer than 2.31" >&2; exit 1; }

for suite in bullseye bookworm trixie forky; do
  printf '\n== demo on %s\n' "$suite"
  mkdir -p "$work/$suite/upper" "$work/$suite/work" "$work/$suite/root"
  # The demo makes containers: its root is a mount, with its own cgroups, and no network.
  unshare --mount --pid --net --fork --kill-child sh -euc '
    mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
    cd "$1/root"
    mkdir -p release
    mount --rbind "$3" release
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    ! mountpoint -q sys/fs/cgroup/unified || mount -t tmpfs tmpfs sys/fs/cgroup/unified
    mkdir -p old
    pivot_root . old
    umount -l /old
    cd /release
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ./install.sh --demo' sh \
    "$work/$suite" "$(realpath "build/roots/$suite")" "$work/$name"
done

printf '\n== adapters\n'
export REASSERT="$program/reassert" VENV="$PWD/build/venv-test" PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec "$VENV/bin/python" -m pytest --numprocesses=2 --dist=loadscope -q tests/e2e/cri/test_pods.py tests/e2e/nri tests/e2e/test_hook.py \
    tests/e2e/agent/test_agent.py'
