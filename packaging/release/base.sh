#!/bin/sh
# Make the base of the container image as a .tar: a Debian with the tools of the chart's pods.
#
#   packaging/release/base.sh OUTPUT.tar [ARCHITECTURE]
set -eu
cd "$(dirname "$0")/../.."
output=$1 architecture=${2:-$(dpkg --print-architecture)}
: "${SUITE:=trixie}"

[ ! -e "$output" ] || exit 0
echo "Making the base of the image, $SUITE …"
work=$output.root
rm -rf "$work"
# kubectl is for the removal Job, socat for the port of the metrics. nsenter and chroot are in every Debian.
debootstrap --arch="$architecture" --variant=minbase --include=kubernetes-client,socat \
  "$SUITE" "$work" "$(tests/mirror.sh)" > "$output.log" 2>&1 || { tail -n 20 "$output.log" >&2; exit 1; }
rm -rf "$work"/var/cache/apt/* "$work"/var/lib/apt/lists/* "$work"/var/log/* "$work/var/cache/ldconfig/aux-cache" \
  "$work/etc/resolv.conf" "$work/etc/hostname"
tar -C "$work" --sort=name --numeric-owner --one-file-system -cf "$output.new" .
mv "$output.new" "$output"
rm -rf "$work"
