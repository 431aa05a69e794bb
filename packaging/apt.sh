#!/bin/sh
# Install the missing packages for building reassert with apt, and those given as arguments:
#
#   packaging/apt.sh runc busybox-static
#
# Without apt-get it prints the names of the packages and fails.
set -eu
: "${PYTHON:=python3}"

wanted=
want() { # PACKAGE COMMAND…: the package is missing if the command fails
  package=$1
  shift
  "$@" >/dev/null 2>&1 || wanted="$wanted $package"
}

install_wanted() {
  [ -n "$wanted" ] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "packaging/apt.sh: there is no apt-get; install these packages first (Debian's names):$wanted" >&2
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
  wanted=
}

want python3 command -v "$PYTHON"
install_wanted

version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
want binutils command -v objdump
if [ "$(readlink -f "$(command -v "$PYTHON")")" = "/usr/bin/python$version" ]; then
  # Debian's python3 comes without venv and without its shared library.
  want python3-venv "$PYTHON" -c 'import ensurepip'
  want "libpython$version" sh -c "ls /usr/lib/*/libpython$version.so.1.0"
fi
for package; do
  case $package in
  libc6-dev) want "$package" test -e /usr/include/stdio.h ;;
  busybox-static) want "$package" test -x /bin/busybox ;;
  iproute2) want "$package" command -v ip ;;
  kubernetes-client) want "$package" command -v kubectl ;;
  *) want "$package" command -v "$package" ;;
  esac
done
install_wanted

# Only front needs a C compiler (docs/internals/agent.md). Without one, packaging/build.sh builds the program alone.
if command -v apt-get >/dev/null; then
  want musl-tools command -v musl-gcc
  want gcc command -v gcc # which musl-gcc calls
  (install_wanted) || echo "packaging/apt.sh: continuing without a C compiler, so front will not be built" >&2
fi
