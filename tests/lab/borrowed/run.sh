#!/bin/bash
# Run a runtime's own test suite with the runtime alone and with reassert in front of it, and compare test by test.
# As root, with the source tree of the version that is installed:
#
#   sudo tests/lab/borrowed/run.sh runc DIR                        all of DIR/tests/integration/*.bats
#   sudo tests/lab/borrowed/run.sh runc DIR exec.bats hooks.bats   only these files
#   sudo tests/lab/borrowed/run.sh runc DIR --runtime /opt/runc    another runc than that in PATH
#   sudo tests/lab/borrowed/run.sh crun DIR                        all of DIR/tests/test_*.py
#
# Exit status: 0 the differences are those in RUNTIME.differences, 1 they are not, 2 it could not be run. See README.md.
set -eu
from=$PWD
cd "$(dirname "$0")/../../.."
: "${PYTHON:=python3}" "${REASSERT:=$PWD/dist/reassert/reassert}"

fail() {
  echo "tests/lab/borrowed/run.sh: $*" >&2
  exit 2
}

usage="usage: sudo tests/lab/borrowed/run.sh runc|crun DIR [FILE …] [--runtime PATH]"
[ $# -ge 2 ] || fail "$usage"
[ "$(id -u)" -eq 0 ] || fail "run it as root: $usage"

missing=
want() { # COMMAND PACKAGE
  command -v "$1" > /dev/null || missing="$missing $2"
}
want "$PYTHON" python3
case $1 in
runc)
  want bats bats
  want jq jq
  want gawk gawk
  want tar tar
  ;;
crun) want gcc gcc ;;
*) fail "no suite called $1; $usage" ;;
esac
want ip iproute2
want unshare util-linux
[ -z "$missing" ] || fail "install these first (names are Debian's):$missing"
[ -x "$REASSERT" ] || fail "no frozen program at $REASSERT; run packaging/build.sh or set REASSERT"

export PYTHONPATH=$PWD/tests PYTHONDONTWRITEBYTECODE=1
cd "$from"
exec "$PYTHON" -m lab.borrowed --reassert "$REASSERT" "$@"
