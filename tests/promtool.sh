#!/bin/sh
# Prometheus' promtool of Debian, as build/promtool: the tests check alert rules and PromQL with it. The package itself
# is not installed, since it starts a service.
set -eu
cd "$(dirname "$0")/.."
[ ! -x build/promtool ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
(
  cd "$work"
  apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
) > "$work/log" 2>&1 || { cat "$work/log" >&2; echo "tests/promtool.sh: apt-get could not fetch prometheus" >&2; exit 1; }
mkdir -p build
mv "$work/usr/bin/promtool" build/promtool
