#!/bin/sh
# Root file systems of Debians for the tests, with their engines and systemd: build/roots/SUITE. And one with programs
# that make TLS connections: build/roots/trust. And one with both, and what docker and podman need for more than
# containers of root: build/roots/sandboxes. And one with package managers: build/roots/installers.
#
#   tests/roots.sh bookworm trixie forky sid
#   tests/roots.sh trust
#   tests/roots.sh sandboxes
#   tests/roots.sh installers
#
# They come from the mirror that this machine's own apt is configured with, and stay until what is wanted in them changes.
set -eu
cd "$(dirname "$0")/.."

mirror=$(tests/mirror.sh)

set_up() { # SUITE, trust or sandboxes
  name=$1 suite=$1 correction=
  packages=containerd,runc,crun,busybox-static,systemd,dbus
  programs=openssl,ca-certificates,curl,wget,git,python3,nodejs,ca-certificates-java,openjdk-17-jdk-headless
  case $suite in
  bookworm) packages=$packages,docker.io,podman,netavark ;; # debootstrap does not resolve container-network-stack
  forky) packages=$packages,criu,libcriu2 ;; # bookworm's does not run on Linux 6.18
  sid) # the engines of today: tests/e2e/node/test_today.py
    packages=$packages,criu,libcriu2,docker.io,docker-cli,docker-buildx,podman,netavark,buildah,runsc
    correction=correct_runsc
    ;;
  trust)
    suite=bookworm
    packages=$programs
    ;;
  installers)
    suite=forky
    packages=dnf,dnf5,zypper,createrepo-c,rpm,pacman-package-manager,libarchive-tools,p11-kit,openssl,ca-certificates
    ;;
  sandboxes)
    suite=bookworm
    packages=$packages,docker.io,podman,netavark,runsc,docker-compose,uidmap,slirp4netns,fuse-overlayfs,iproute2
    packages=$packages,kubernetes-client,python3-pip,$programs
    ;;
  esac
  root=build/roots/$name
  wanted=$packages${correction:+ $correction}
  [ "$(cat "$root/.complete" 2>/dev/null)" != "$wanted" ] || return 0
  echo "Setting up $root …"
  rm -rf "$root" "$root.missing"
  mkdir -p build/roots
  script=/usr/share/debootstrap/scripts/$suite
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # a suite that this debootstrap does not know yet
  debootstrap --variant=minbase "--include=$packages" "$suite" "$root" "$mirror" "$script" > "$root.log" 2>&1 ||
    { gone "$name" || return 1; return 0; }
  rm -rf "$root"/var/cache/apt/archives/*.deb
  [ -z "$correction" ] || "$correction" "$root/usr/bin/runsc"
  echo "$wanted" > "$root/.complete"
}

# runsc of 2024 is built with Go 1.26 there, and looks for the number of a goroutine where an older Go has it (pkg/goid;
# runtime.g): 8 bytes too far. What it finds there is now and then not 0, and the sentry ends by its own assertion
# ("panic: running on goroutine"), with 2 or 3 containers of 100. Here it gets the offset of its Go.
correct_runsc() { # FILE
  ! LC_ALL=C grep -qa 'go1\.26' "$1" ||
    LC_ALL=C sed -i 's/\(\x4d\x8b\xb6\)\xa0\(\x00\x00\x00\x4c\x89\x74\x24\x08\xc3\)/\1\x98\2/' "$1"
}

# A suite that moves has days on which one of them cannot be installed. The tests that need it say so, the others run.
gone() { # NAME
  tail -n 20 "build/roots/$1.log" >&2
  [ "$1" = sid ] || return 1
  why=$(grep -E "^E: |^W: Failure|Couldn't find|Couldn't download" "build/roots/$1.log" | head -n 3 | tr '\n' ' ')
  echo "cannot be installed today: ${why:-see build/roots/$1.log}" | tee "build/roots/$1.missing" >&2
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
