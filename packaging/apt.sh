#!/bin/sh
# Install with apt what is missing for building reassert, and the packages named as arguments:
#
#   packaging/apt.sh runc busybox-static
#
# Another system than Debian's family needs them installed by hand; the names are said.
set -eu
: "${PYTHON:=python3}"

version() {
  "$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

wanted=
want() { # PACKAGE, then a command that succeeds if it is not needed
  package=$1
  shift
  "$@" >/dev/null 2>&1 || wanted="$wanted $package"
}

want python3 command -v "$PYTHON"
want binutils command -v objdump
for package; do
  case $package in
  busybox-static) want "$package" test -x /bin/busybox ;;
  containerd) want "$package" command -v containerd ;;
  *) want "$package" command -v "$package" ;;
  esac
done
# Debian's python3 comes without venv and without its shared library.
if [ "$(readlink -f "$(command -v "$PYTHON" || echo /usr/bin/python3)")" = "/usr/bin/python$(version)" ] ||
  ! command -v "$PYTHON" >/dev/null; then
  want python3-venv "$PYTHON" -c 'import ensurepip'
  set -- /usr/lib/*/"libpython$(version)".so.1.0
  want "libpython$(version || echo 3)" test -e "$1"
fi
[ -n "$wanted" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "packaging/apt.sh: install these first (names are Debian's):$wanted" >&2
  exit 1
fi
echo "Installing$wanted with apt …"
log=$(mktemp)
# shellcheck disable=SC2086  # a list
if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $wanted; } \
  >"$log" 2>&1; then
  cat "$log" >&2
  rm -f "$log"
  echo "packaging/apt.sh: apt-get could not install$wanted" >&2
  exit 1
fi
rm -f "$log"
