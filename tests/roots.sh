#!/bin/sh
# Root file systems of later Debians for the tests, with their containerd, runc and crun: build/roots/SUITE.
#
#   tests/roots.sh trixie forky
#
# They come from the mirror that this machine's own apt is configured with, and stay until they are deleted.
set -eu
cd "$(dirname "$0")/.."

mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  sed -n 's/^URIs: *\([^ ]*\/debian\)\/* *$/\1/p; s/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/*  *.*/\2/p' | head -n 1)
[ -n "$mirror" ] || { echo "tests/roots.sh: no Debian mirror in /etc/apt" >&2; exit 1; }

for suite; do
  root=build/roots/$suite
  [ -e "$root/.complete" ] && continue
  echo "Setting up $root …"
  rm -rf "$root"
  mkdir -p build/roots
  script=/usr/share/debootstrap/scripts/$suite
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # a suite that this debootstrap does not know yet
  debootstrap --variant=minbase --include=containerd,runc,crun,busybox-static "$suite" "$root" "$mirror" "$script" \
    > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb
  touch "$root/.complete"
done
