#!/bin/sh
# Put reassert on this worker node, take it off again, or show what it does:
#
#   sudo ./install.sh                 wire it into the node's container engine, prove it with probe containers
#   sudo ./install.sh --dry-run       say what that would change
#   sudo ./install.sh --uninstall     put everything back as it was, and name what stays (policy, event log)
#   sudo ./install.sh --uninstall --purge     remove that too
#   sudo ./install.sh --demo          a hostile container with and without reassert, under the real runc; the node's
#                                     configuration is not touched
#
# Other options go to `reassert node install` (or uninstall): --engine containerd|crio|docker|podman,
# --adapter runtime,nri,hook,cdi, --no-unit, --runtime-class NAME, --no-probe. Builds the program into dist/ first where
# that is missing or older than its sources, with what apt has.
# Exit status: 0 done, 1 failed and everything is as it was, 2 wrong usage; of --demo also 3, containers cannot run here.
set -eu
cd "$(dirname "$0")"

usage() {
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '$d'
}

build() {
  if [ -x dist/reassert/reassert ] &&
    [ -z "$(find hook packaging config -type f ! -name '*.pyc' -newer dist/reassert/reassert -print -quit)" ]; then
    return 0
  fi
  packaging/apt.sh
  echo "Building reassert (half a minute the first time) …"
  packaging/build.sh
}

for argument; do
  case $argument in
  -h | --help)
    usage
    exit 0
    ;;
  esac
done
[ "$(id -u)" -eq 0 ] || { echo "install.sh: run it as root: sudo ./install.sh $*" >&2; exit 2; }

case ${1-} in
--demo)
  [ $# -eq 1 ] || { usage >&2; exit 2; }
  packaging/apt.sh runc busybox-static
  build
  exec packaging/demo.sh
  ;;
--uninstall)
  shift
  program=/opt/reassert/reassert
  [ -x "$program" ] || program=dist/reassert/reassert
  if [ ! -x "$program" ]; then
    echo "reassert is not on this node; nothing was changed."
    exit 0
  fi
  exec "$program" node uninstall "$@"
  ;;
"" | --engine* | --adapter* | --runtime-class* | --default | --dry-run | --no-probe | --no-unit)
  build
  exec dist/reassert/reassert node install "$@"
  ;;
*)
  usage >&2
  exit 2
  ;;
esac
