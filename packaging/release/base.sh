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
# What debootstrap writes gets the time of Debian's index: the same packages give the same bytes on another day.
index=$(sed -n 's/^Date: //p' "$work"/var/lib/apt/lists/*Release | head -n 1)
sed -i "s/^\([^:]*:[^:]*:\)[0-9]*:/\1$(($(date -d "$index" +%s) / 86400)):/" "$work"/etc/shadow*
rm -rf "$work"/var/cache/apt/* "$work"/var/lib/apt/lists/* "$work"/var/log/* "$work/var/cache/ldconfig/aux-cache" \
  "$work/etc/resolv.conf" "$work/etc/hostname"
tar -C "$work" --sort=name --clamp-mtime --mtime="$index" --numeric-owner --one-file-system -cf "$output.new" .
mv "$output.new" "$output"
rm -rf "$work"
