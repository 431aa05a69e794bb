#!/bin/bash
# Runs tests/hostile-pod under the products of docs/project/peers.md, and writes what each holds to tests/lab/peers/results.
#
#   sudo tests/lab/peers/run.sh [--bin DIR] [pytest's arguments, such as -k runc]
#
# DIR has what Debian does not have, built from its source: nvidia-container-runtime, oci-interceptor, youki,
# nri-device-injector, nri-ulimit-adjuster, crio with pinns; NAME.commit says of what. A product whose program is not there is left out, and its old result stays.
# Then tests/pages.py writes docs/project/peers.md. Needs what tests/run.sh installs, and a frozen build (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/peers/run.sh: $*" >&2
  exit 2
}

REASSERT_PEERS=/nowhere
if [ "${1-}" = --bin ]; then
  [ $# -ge 2 ] || fail "--bin needs a directory"
  REASSERT_PEERS=$(realpath -- "$2")
  shift 2
fi
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
export REASSERT_PEERS
exec unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest --verbose --tb=short tests/lab/peers/on_peers.py "$@"' tests/lab/peers/run.sh "$@"
