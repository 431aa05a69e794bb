#!/bin/sh
# The tests of `tests/run.sh --fast` in a Debian 12 for arm64, emulated by qemu-user (20 to 60 minutes on two cores):
#
#   sudo tests/lab/arm64.sh [PYTEST-ARGUMENTS]
#   sudo tests/lab/arm64.sh --build     freezes the program there instead (arm64-vm.sh)
#
# Needs debootstrap, and qemu-user-static as the kernel's interpreter of arm64 programs (binfmt_misc). The root file system
# stays in build/roots/arm64, or in $ROOT. What qemu-user lacks is skipped by name (tests/machine.py).
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/lab/arm64.sh: run it as root" >&2; exit 2; }
grep -qs enabled /proc/sys/fs/binfmt_misc/qemu-aarch64 ||
  { echo "tests/lab/arm64.sh: the kernel runs no arm64 programs; on Debian: apt-get install qemu-user-static binfmt-support" >&2; exit 2; }
root=$(realpath -m "${ROOT:-build/roots/arm64}")
if [ ! -e "$root/.complete" ]; then
  echo "Setting up $root …"
  rm -rf "$root"
  packages=python3-venv,libpython3.11,gcc,libc6-dev,binutils,musl-tools,git,util-linux,procps,busybox-static,crun,runc
  packages=$packages,systemd-sysv,dbus,udev,kmod,iproute2,containerd,ca-certificates,openssl # of the virtual machine
  debootstrap --arch=arm64 --variant=minbase "--include=$packages" \
    bookworm "$root" "$(tests/mirror.sh)" > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
  touch "$root/.complete"
fi

# pip runs here: the root may have no network. Hashes are checked here, and environment markers are those of arm64.
wheels=$root/wheels
mkdir -p "$wheels"
cat packaging/requirements*.txt tests/requirements.txt | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' |
  grep -v x86_64 | sort -u -k 1,1 > "$wheels/requirements.txt"
platforms=
for glibc in 2_17 2_24 2_27 2_28 2_31 2_34; do platforms="$platforms --platform manylinux_${glibc}_aarch64"; done
# shellcheck disable=SC2086  # a list
python3 -m pip --quiet --disable-pip-version-check download --require-hashes --only-binary :all: --no-deps --dest "$wheels" \
  --implementation cp --python-version 3.11 $platforms --platform manylinux2014_aarch64 -r "$wheels/requirements.txt"

rm -rf "$root/src"
mkdir "$root/src"
git archive HEAD | tar -x -C "$root/src"
[ $# -gt 0 ] || set -- --numprocesses=2 --dist=worksteal tests
# The root is a mount of its own, since tests make mount namespaces in it.
exec unshare --mount --pid --fork --kill-child sh -euc '
  root=$1
  shift
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys" # with the cgroups
  mount --rbind /dev "$root/dev"
  cd "$root"
  mkdir -p old
  pivot_root . old
  umount -l /old
  cd /src
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root sh -euc "
    if [ \"\$*\" = --build ]; then
      export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
      exec packaging/build.sh
    fi
    if ! cmp -s /wheels/requirements.txt /venv/made; then
      rm -rf /venv
      python3 -m venv /venv
      /venv/bin/pip install --quiet --no-index --find-links /wheels -r /wheels/requirements.txt
      cp /wheels/requirements.txt /venv/made
    fi
    uname -m
    exec /venv/bin/python -m pytest --fast --quiet \"\$@\"" sh "$@"' sh "$root" "$@"
