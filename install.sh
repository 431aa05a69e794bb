#!/bin/sh
# Install reassert on this worker node, uninstall it, or show a demo:
#
#   sudo ./install.sh                 configure the node's container engine to call reassert, and start test containers
#                                     to verify that
#   sudo ./install.sh --dry-run       print the changes that an install would make
#   sudo ./install.sh --uninstall     restore the engine's configuration; an edited policy and the event log stay, and
#                                     their paths are printed
#   sudo ./install.sh --uninstall --purge     remove policy and event log too
#   sudo ./install.sh --demo          start a hostile container under runc with and without reassert; the node's
#                                     configuration is not changed
#   sudo ./install.sh --demo --runtime runsc     the same under gVisor's runsc, or under crun
#
# Other options go to `reassert install` (or uninstall): --engine containerd|crio|docker|podman|k3s|rke2,
# --adapter runtime,nri,hook,cdi, --no-unit, --no-agent, --runtime-class NAME, --no-probe, --metrics ADDRESS,
# --textfile DIR. In a checkout, if dist/ has no program or one that is older than its sources, it is built first;
# missing build tools are installed with apt. The archive of a release has the program: nothing is built or downloaded.
# Exit status: 0 success, 1 failed and everything was restored, 2 wrong usage, 3 (of --demo) containers cannot run here.
set -eu
cd "$(dirname "$0")"

usage() {
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0"
}

build() {
  [ -e packaging/build.sh ] || return 0 # the archive of a release: the program is there, and nothing is installed
  if [ -x dist/reassert/reassert ] &&
    [ -z "$(find hook packaging config -type f ! -name '*.pyc' -newer dist/reassert/reassert -print -quit)" ]; then
    return 0
  fi
  packaging/apt.sh
  echo "Building reassert (half a minute the first time) …"
  packaging/build.sh
}

# Manual pages, completion and the policy's schema; a package has its own. No reason to fail: /usr may be read-only.
extras() {
  [ ! -e /usr/share/doc/reassert ] || return 0
  packaging/extras.sh "$@" || echo "install.sh: the manual pages and completions were not changed, see above" >&2
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
  [ $# -eq 1 ] || { [ $# -eq 3 ] && [ "$2" = --runtime ]; } || { usage >&2; exit 2; }
  [ ! -e packaging/apt.sh ] || packaging/apt.sh "${3:-runc}" busybox-static
  build
  shift
  exec packaging/demo.sh "$@"
  ;;
--uninstall)
  shift
  program=/opt/reassert/reassert
  [ -x "$program" ] || program=dist/reassert/reassert
  if [ ! -x "$program" ]; then
    echo "reassert is not installed on this node; nothing was changed."
    exit 0
  fi
  "$program" node uninstall "$@"
  case " $* " in *" --dry-run "*) exit 0 ;; esac
  extras remove /usr/local
  ;;
"" | --*)
  if [ -e /usr/lib/reassert/start ]; then
    echo "install.sh: the package of reassert is installed on this node, and a node has one installation; run 'reassert install', or remove the package first" >&2
    exit 1
  fi
  build
  dist/reassert/reassert install "$@"
  case " $* " in *" --dry-run "*) exit 0 ;; esac
  extras install dist/reassert/reassert /usr/local
  ;;
*)
  usage >&2
  exit 2
  ;;
esac
