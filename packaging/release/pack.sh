#!/bin/sh
# Make the files of a release from the output of packaging/build.sh: the archive, the .deb, the .rpm and the SBOM.
#
#   DIST=dist packaging/release/pack.sh OUTPUT
#
# SOURCE_DATE_EPOCH is the time of every file, by default that of the last commit. Needs dpkg-deb, rpmbuild, objdump and
# python3, no root; packaging/build.sh has run here, whose virtual environment the SBOM lists.
set -eu
cd "$(dirname "$0")/../.."
: "${DIST:=dist}"
umask 022
export LC_ALL=C

fail() {
  echo "packaging/release/pack.sh: $*" >&2
  exit 1
}

for tool in dpkg-deb rpmbuild objdump; do
  command -v $tool > /dev/null || fail "$tool is missing; apt-get install dpkg rpm binutils"
done
[ -x "$DIST/reassert/front" ] || fail "$DIST/reassert/front is missing; run packaging/build.sh first"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
mkdir -p "$1"
output=$(realpath "$1")
version=$("$DIST/reassert/reassert" --version | sed 's/^reassert //')
machine=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# -- the archive: what install.sh needs, and what a reader of it needs
name=reassert-$version-linux-$machine
mkdir -p "$work/$name/dist" "$work/$name/packaging"
cp -a "$DIST/reassert" "$work/$name/dist"
cp packaging/demo.sh packaging/extras.sh "$work/$name/packaging"
mkdir "$work/$name/packaging/deb"
cp packaging/deb/reassert.8 "$work/$name/packaging/deb" # extras.sh installs it
cp -R packaging/systemd packaging/monitoring "$work/$name/packaging" # docs/ names them by these paths
mkdir "$work/$name/packaging/kubernetes"
cp -R packaging/kubernetes/chart packaging/kubernetes/manifests "$work/$name/packaging/kubernetes"
cp -R install.sh README.md LICENSE CHANGELOG.md SECURITY.md config docs "$work/$name"
python3 packaging/deb/docs.py --in-place "$work/$name" # the archive has no sources
find "$work/$name" -name __pycache__ -prune -exec rm -rf {} +
find "$work/$name" -type d -exec chmod 755 {} +
find "$work/$name" -type f -exec chmod u=rwX,go=rX {} +
tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -c "$name" |
  gzip "-${GZIP_LEVEL:-9}n" > "$output/$name.tar.gz"

# -- the packages
deb=$(DIST=$DIST packaging/deb/build.sh)
mv "$deb" "$output"
packaging/release/rpm.sh "$output/${deb##*/}" "$output"

# -- the SBOM, and what is known about vulnerabilities of its parts
sbom=$output/reassert-$version-linux-$machine.cdx.json
build/venv/bin/python packaging/release/sbom.py "$DIST/reassert" > "$sbom"
build/venv/bin/python packaging/release/vex.py "$sbom" "${sbom%.cdx.json}.openvex.json"
