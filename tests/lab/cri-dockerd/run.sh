#!/bin/bash
# Drives a real cri-dockerd, given by path, and the dockerd of Debian 12 on a booted node, as kubelet asks for pods.
#
#   sudo tests/lab/cri-dockerd/run.sh CRI-DOCKERD [pytest's arguments]
#
# There is no kubelet: the CRI calls, the labels, the directories and the checkpoint of devices are the tests'. Not in CI.
# Needs what tests/run.sh installs, and a frozen build (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/cri-dockerd/run.sh: $*" >&2
  exit 2
}

[ $# -ge 1 ] || fail "which cri-dockerd? sudo tests/lab/cri-dockerd/run.sh CRI-DOCKERD"
REASSERT_TEST_CRI_DOCKERD=$(realpath -- "$1")
shift
[ -x "$REASSERT_TEST_CRI_DOCKERD" ] || fail "$REASSERT_TEST_CRI_DOCKERD is no program"
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
export REASSERT_TEST_CRI_DOCKERD
"$REASSERT_TEST_CRI_DOCKERD" --version
exec unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest --verbose --tb=short tests/lab/cri-dockerd/on_cri_dockerd.py "$@"' \
  tests/lab/cri-dockerd/run.sh "$@"
