#!/bin/sh
# Make the container image of the chart's pods as an OCI layout in a .tar, without a daemon, by umoci:
#
#   packaging/release/image.sh BASE.tar OUTPUT
#
# BASE.tar is the file system under the program (packaging/release/base.sh). The program is that of packaging/build.sh in
# $DIST; the image has the same files as packaging/kubernetes/image/Dockerfile makes. Needs no root.
set -eu
cd "$(dirname "$0")/../.."
base=$(realpath "$1") output=$(realpath "$2")
: "${DIST:=dist}" "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
command -v umoci > /dev/null || { echo "packaging/release/image.sh: umoci is missing; apt-get install umoci" >&2; exit 1; }
version=$("$DIST/reassert/reassert" --version | sed 's/^reassert //')
architecture=$(dpkg --print-architecture)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
reproducible="--sort=name --mtime=@$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner"
mkdir -p "$work/program/opt" "$work/program/usr/local/bin"
cp -a "$DIST/reassert" "$work/program/opt/reassert"
install -m 755 packaging/kubernetes/image/*.sh "$work/program/usr/local/bin"
install -D -m 644 -t "$work/program/usr/local/share/reassert" packaging/systemd/reassert-trust.*
find "$work/program" -type d -exec chmod 755 {} +
# Not the directories: a base may have /usr/local as a link, and its own modes.
# shellcheck disable=SC2086  # options
(cd "$work/program" && find opt/reassert usr/local/bin usr/local/share -mindepth 1 ! -path usr/local/bin | sort |
  tar $reproducible --no-recursion -cf ../program.tar opt/reassert -T -)
date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
image=$work/layout:localhost/reassert:$version # a name that kubelet finds after `ctr images import`
umoci init --layout "$work/layout"
umoci new --image "$image"
for layer in "$base" "$work/program.tar"; do
  umoci raw add-layer --image "$image" --history.created "$date" --history.author reassert \
    --history.created_by "$(basename "$layer")" "$layer"
done
umoci config --image "$image" --no-history --created "$date" --architecture "$architecture" --os linux \
  --config.workingdir / --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  --config.label "org.opencontainers.image.version=$version" --config.label org.opencontainers.image.title=reassert \
  --config.label org.opencontainers.image.licenses=Apache-2.0
umoci gc --layout "$work/layout"
# shellcheck disable=SC2086  # options
tar -C "$work/layout" $reproducible -cf "$output/reassert-$version-image-$architecture.tar" .
