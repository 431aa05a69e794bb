#!/bin/sh
# Show what reassert does on this machine:
#
#   sudo ./install.sh --demo    a hostile container with and without reassert, under the real runc
#
# Installs what is missing with apt, builds the program into dist/ and cleans up after itself. The node's
# configuration is not touched. Exit status: 0 all as promised, 1 not, 2 wrong usage, 3 containers cannot run here.
set -eu
cd "$(dirname "$0")"

usage() {
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '$d'
}

case ${1-} in
--demo) ;;
-h | --help)
  usage
  exit 0
  ;;
*)
  usage >&2
  exit 2
  ;;
esac
[ $# -eq 1 ] || { usage >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "install.sh: run it as root: sudo ./install.sh --demo" >&2; exit 2; }

packaging/apt.sh runc busybox-static
echo "Building reassert (half a minute the first time) …"
packaging/build.sh
exec packaging/demo.sh
