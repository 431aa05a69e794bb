#!/bin/bash
# Run a runtime's own test suite with the runtime alone and with reassert in front of it, and compare test by test.
# As root, with the source tree of the version that is installed:
#
#   sudo tests/borrowed/run.sh runc DIR                        all of DIR/tests/integration/*.bats
#   sudo tests/borrowed/run.sh runc DIR exec.bats hooks.bats   only these files
#   sudo tests/borrowed/run.sh runc DIR --runtime /opt/runc    another runc than that in PATH
#
# Exit status: 0 the differences are those in runc.differences, 1 they are not, 2 it could not be run. See README.md.
set -eu
from=$PWD
cd "$(dirname "$0")/../.."
: "${PYTHON:=python3}" "${REASSERT:=$PWD/dist/reassert/reassert}"

fail() {
  echo "tests/borrowed/run.sh: $*" >&2
  exit 2
}

usage="usage: sudo tests/borrowed/run.sh runc DIR [FILE.bats …] [--runtime RUNC]"
[ $# -ge 2 ] || fail "$usage"
suite=$1
shift
case $suite in
runc) ;;
*) fail "no suite called $suite; $usage" ;;
esac
[ "$(id -u)" -eq 0 ] || fail "run it as root: $usage"

missing=
want() { # COMMAND PACKAGE
  command -v "$1" > /dev/null || missing="$missing $2"
}
want "$PYTHON" python3
want bats bats
want jq jq
want gawk gawk
want ip iproute2
want unshare util-linux
want tar tar
[ -z "$missing" ] || fail "install these first (names are Debian's):$missing"
[ -x "$REASSERT" ] || fail "no frozen program at $REASSERT; run packaging/build.sh or set REASSERT"

export PYTHONPATH=$PWD/tests PYTHONDONTWRITEBYTECODE=1
cd "$from"
exec "$PYTHON" -m borrowed --reassert "$REASSERT" "$@"
