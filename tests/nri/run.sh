#!/bin/bash
# Drives a containerd of any version, given by path, with the frozen NRI plugin, other plugins and hostile containers.
#
#   sudo tests/nri/run.sh CONTAINERD [SHIM] [tests/e2e/nri/…]
#
# CONTAINERD: path of the program. SHIM: path of its containerd-shim-runc-v2; without it, the one beside CONTAINERD, or
# the machine's. `ctr` is taken from the shim's directory too. containerd gets a configuration and namespaces of its
# own, and the runc and crun of Debian forky (tests/roots.sh forky); the machine's engines are left alone. Each line of
# the result is one promise, with whether it held. Needs what tests/run.sh installs, and a frozen build
# (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../.."

fail() {
  echo "tests/nri/run.sh: $*" >&2
  exit 2
}

case ${1:-} in '' | -*) fail "which containerd? sudo tests/nri/run.sh CONTAINERD [SHIM]" ;; esac
REASSERT_TEST_CONTAINERD=$(realpath -- "$1")
shift
[ -x "$REASSERT_TEST_CONTAINERD" ] || fail "$REASSERT_TEST_CONTAINERD is no program"
REASSERT_TEST_SHIMS=
case ${1:-} in
'' | -* | tests/*) ;;
*)
  [ -x "$1" ] || fail "$1 is no program"
  REASSERT_TEST_SHIMS=$(dirname -- "$(realpath -- "$1")")
  shift
  ;;
esac
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
case " $* " in *" tests/"*) ;; *) set -- tests/e2e/nri "$@" ;; esac
export REASSERT_TEST_CONTAINERD REASSERT_TEST_SHIMS PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
"$REASSERT_TEST_CONTAINERD" --version
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
exec unshare --mount --propagation private sh -c '
  mount -t tmpfs -o mode=0755 tmpfs "$PYTEST_DEBUG_TEMPROOT"
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest --verbose --tb=short -k given "$@"' tests/nri/run.sh "$@"
