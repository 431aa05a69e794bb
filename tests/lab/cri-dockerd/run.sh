#!/bin/bash
# Drives a real cri-dockerd, given by path, and the dockerds of Debian 12 and unstable on a booted node.
#
#   sudo tests/lab/cri-dockerd/run.sh CRI-DOCKERD [--bin DIR] [pytest's arguments]
#
# Without --bin there is no kubelet: the CRI calls, the labels, the directories and the checkpoint of devices are the
# tests'. DIR has what tests/lab/cluster/run.sh says, but for kube-controller-manager and kube-scheduler: a pod names its
# node. Not in CI. Needs what tests/run.sh installs, and a frozen build (packaging/build.sh).
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
if [ "${1-}" = --bin ]; then
  REASSERT_TEST_KUBERNETES=$(realpath -- "$2")
  shift 2
  export REASSERT_TEST_KUBERNETES
  [ -x /usr/lib/cni/ptp ] || fail "no CNI plugins: apt-get install containernetworking-plugins"
  for program in etcd kubectl kube-apiserver kubelet; do
    [ -x "$REASSERT_TEST_KUBERNETES/$program" ] || fail "$REASSERT_TEST_KUBERNETES has no program $program"
  done
  "$REASSERT_TEST_KUBERNETES/kubelet" --version
  set -- tests/lab/cri-dockerd/on_pods.py "$@"
else
  set -- tests/lab/cri-dockerd/on_cri_dockerd.py "$@"
fi
exec unshare --mount --net --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  ip link set lo up
  exec build/venv-test/bin/python -m pytest --verbose --tb=short "$@"' tests/lab/cri-dockerd/run.sh "$@"
