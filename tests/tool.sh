#!/bin/sh
# A program of a Debian package as build/PROGRAM. The package itself is not installed, since it starts a service.
#
#   tests/tool.sh prometheus promtool                  # checks alert rules and PromQL
#   tests/tool.sh docker-registry docker-registry      # a registry to publish a release to
set -eu
cd "$(dirname "$0")/.."
package=$1 program=$2
[ ! -x "build/$program" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
(
  cd "$work"
  apt-get -q download "$package" || { apt-get -q update && apt-get -q download "$package"; }
  dpkg-deb --fsys-tarfile "${package}"_*.deb | tar -x "./usr/bin/$program"
) > "$work/log" 2>&1 || { cat "$work/log" >&2; echo "tests/tool.sh: apt-get could not fetch $package" >&2; exit 1; }
mkdir -p build
mv "$work/usr/bin/$program" "build/$program"
