#!/bin/sh
# Try the archive of a release on each Debian: the demo (the wrapper under the Debian's own runc) in 11, 12, 13, testing
# and sid. Then `install` with each adapter on booted nodes of 12 to sid, with their containerd. Debian 11's
# containerd 1.4 is older than what reassert supports, so the hook and the NRI plugin are tried there with this machine's
# runc and crun and with containerd 1.7. Takes about two minutes.
#
#   sudo tests/lab/release.sh build/release/VERSION/reassert-VERSION-linux-ARCH.tar.gz
#
# Needs what `sudo tests/run.sh` has set up. Makes build/roots/bullseye and build/roots/sid.
set -eu
[ $# -eq 1 ] || { sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
archive=$(realpath "$1")
cd "$(dirname "$0")/../.."
name=$(basename "$archive" .tar.gz)
tests/roots.sh bullseye bookworm trixie forky sid
work=$(mktemp -d /var/lib/reassert-release.XXXXXX)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$archive"
program=$work/$name/dist/reassert

echo "Symbols of glibc:"
newest=$(find "$program" -type f \( -name reassert -o -name '*.so' -o -name '*.so.*' \) -exec objdump -T {} + 2> /dev/null |
  sed -n 's/.*[ (]GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
echo "   the newest is $newest"
[ "$(printf '%s\n2.31\n' "$newest" | sort -V | tail -n 1)" = 2.31 ] || { echo "newer than 2.31" >&2; exit 1; }

for suite in bullseye bookworm trixie forky sid; do
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

export VENV="$PWD/build/venv-test" PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT" dist/reassert # nodes have the program mounted at the latter
mkdir "$work/11"
cp tests/e2e/packaging/in_root.sh "$work/11/reassert"
unshare --mount --propagation private sh -euc '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi # as tests/run.sh
  run_tests() {
    "$VENV/bin/python" -m pytest --quiet --numprocesses=2 --dist=loadscope "$@"
  }
  printf "\n== adapters on booted nodes of bookworm, trixie, forky and sid\n"
  REASSERT=$1/reassert run_tests tests/e2e/node/each_suite.py
  printf "\n== hook and NRI plugin in bullseye\n"
  cd "$2"
  mkdir upper work root
  mount -t overlay overlay -o "lowerdir=$3,upperdir=upper,workdir=work" root
  mkdir -p root/release "root$PYTEST_DEBUG_TEMPROOT"
  mount --bind "$1" root/release
  cd "$4"
  REASSERT=$2/reassert run_tests tests/e2e/test_hook.py tests/e2e/nri/test_override.py \
    -k "createRuntime and (puts_the_mount_back or refuses_wrong_env) or undone_in_the_container and 1.7"' \
  sh "$program" "$work/11" "$(realpath build/roots/bullseye)" "$PWD"
