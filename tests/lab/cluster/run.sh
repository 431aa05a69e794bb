#!/bin/bash
# Installs the chart on a real cluster: a control plane, and kubelets on booted nodes with containerd 1.6, 1.7 and 2.1.
#
#   sudo tests/lab/cluster/run.sh --bin DIR [--api-server | --fleet] [pytest's arguments]
#
# --api-server: only what needs no node (on_api_server.py, on_admission.py, on_rollout.py; two minutes), and no kubelet in DIR.
# --fleet: measures what the view of 1,000 simulated nodes costs the API server (fleet.py; three minutes).
# REASSERT_TEST_NODES is another number of nodes.
#
# DIR has kube-apiserver, kube-controller-manager, kube-scheduler and kubelet of a release of Kubernetes, and Debian 13's
# etcd (etcd-server) and kubectl (the chart's image gets this one). The four also build from the sources of MicroShift,
# whose vendor directory has Kubernetes as OpenShift's fork carries it: for each a package of its module, whose main runs
# the command of k8s.io/kubernetes/cmd/NAME/app, built with CGO_ENABLED=0 and -mod=vendor. The nodes are the roots of
# tests/roots.sh; pods get addresses from the machine's CNI plugins (containernetworking-plugins). All of it runs in a
# network namespace of its own. The tests are steps, in order: with `-k` leave out only what comes later. Not in CI; 12
# minutes on two busy cores. REASSERT_TEST_KEEP=1 keeps the logs of the control plane in /var/lib/reassert-tests.
# Needs what tests/run.sh installs, and a frozen build (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/cluster/run.sh: $*" >&2
  exit 2
}

[ "${1-}" = --bin ] && [ $# -ge 2 ] || fail "where are the programs? sudo tests/lab/cluster/run.sh --bin DIR"
REASSERT_TEST_KUBERNETES=$(realpath -- "$2")
shift 2
programs="etcd kubectl kube-apiserver kube-controller-manager kube-scheduler"
if [ "${1-}" = --api-server ]; then
  shift
  set -- tests/lab/cluster/on_api_server.py tests/lab/cluster/on_admission.py tests/lab/cluster/on_rollout.py "$@"
elif [ "${1-}" = --fleet ]; then
  shift
  set -- --capture=no tests/lab/cluster/fleet.py "$@"
else
  programs="$programs kubelet"
  set -- tests/lab/cluster/on_api_server.py tests/lab/cluster/on_admission.py tests/lab/cluster/on_rollout.py tests/lab/cluster/on_cluster.py tests/lab/cluster/on_kubelet.py "$@"
  [ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
  [ -x /usr/lib/cni/ptp ] || fail "no CNI plugins: apt-get install containernetworking-plugins"
fi
for program in $programs; do
  [ -x "$REASSERT_TEST_KUBERNETES/$program" ] || fail "$REASSERT_TEST_KUBERNETES has no program $program"
done
[ "$(id -u)" -eq 0 ] || fail "run it as root"
export REASSERT_TEST_KUBERNETES
"$REASSERT_TEST_KUBERNETES/etcd" --version | head -n 1
for program in ${programs#etcd kubectl}; do
  "$REASSERT_TEST_KUBERNETES/$program" --version
done
exec unshare --mount --net --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  ip link set lo up
  exec build/venv-test/bin/python -m pytest --verbose --tb=short --exitfirst "$@"' tests/lab/cluster/run.sh "$@"
