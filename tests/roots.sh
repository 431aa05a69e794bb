#!/bin/sh
# Root file systems of Debians for the tests, with their engines and systemd: build/roots/SUITE. And one with programs
# that make TLS connections: build/roots/trust. And one with both, and what docker and podman need for more than
# containers of root: build/roots/sandboxes.
#
#   tests/roots.sh bookworm trixie forky
#   tests/roots.sh trust
#   tests/roots.sh sandboxes
#
# They come from the mirror that this machine's own apt is configured with, and stay until what is wanted in them changes.
set -eu
cd "$(dirname "$0")/.."

mirror=$(tests/mirror.sh)

set_up() { # SUITE, trust or sandboxes
  name=$1 suite=$1
  packages=containerd,runc,crun,busybox-static,systemd,dbus
  programs=openssl,ca-certificates,curl,wget,git,python3,nodejs,ca-certificates-java,openjdk-17-jdk-headless
  case $suite in
  bookworm) packages=$packages,docker.io,podman,netavark ;; # debootstrap does not resolve container-network-stack
  forky) packages=$packages,criu,libcriu2 ;; # bookworm's does not run on Linux 6.18
  trust)
    suite=bookworm
    packages=$programs
    ;;
  sandboxes)
    suite=bookworm
    packages=$packages,docker.io,podman,netavark,runsc,docker-compose,uidmap,slirp4netns,fuse-overlayfs,iproute2
    packages=$packages,kubernetes-client,python3-pip,$programs
    ;;
  esac
  root=build/roots/$name
  [ "$(cat "$root/.complete" 2>/dev/null)" != "$packages" ] || return 0
  echo "Setting up $root …"
  rm -rf "$root"
  mkdir -p build/roots
  script=/usr/share/debootstrap/scripts/$suite
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # a suite that this debootstrap does not know yet
  debootstrap --variant=minbase "--include=$packages" "$suite" "$root" "$mirror" "$script" > "$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; return 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb
  echo "$packages" > "$root/.complete"
}

# At once: they wait for the mirror and for the disk by turns.
running=
for suite; do
  set_up "$suite" &
  running="$running $!"
done
for pid in $running; do
  wait "$pid"
done
