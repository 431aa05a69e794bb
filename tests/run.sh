#!/bin/bash
# Set up everything that the tests need on a Debian machine, then run all of them. As root:
#
#   sudo tests/run.sh                      lint, types, unit and end-to-end tests with the real runtimes
#   sudo tests/run.sh tests/unit -k glob   only these, as pytest takes them
#
# In CI (CI=true) a test that is skipped because the machine lacks something counts as failed.
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "tests/run.sh: run it as root: sudo tests/run.sh" >&2; exit 2; }
: "${PYTHON:=python3}"
export PYTHON

packaging/apt.sh runc crun containerd podman busybox-static strace gdb debootstrap mandoc \
  kubernetes-client
case $* in
*tests/unit*) ;;
*) tests/roots.sh bookworm trixie forky ;; # containerd 1.6, 1.7 and 2.1
esac
echo "Building reassert …"
packaging/build.sh

stamp=$("$PYTHON" -VV | cat - packaging/requirements.txt tests/requirements.txt | cksum | tr ' ' -)
venv=$PWD/build/venv-test
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  echo "Installing the test tools …"
  rm -rf "$venv"
  "$PYTHON" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
    -r packaging/requirements.txt -r tests/requirements.txt
  echo "$stamp" > "$venv/stamp"
fi

if [ $# -eq 0 ]; then
  "$venv/bin/ruff" format --check .
  "$venv/bin/ruff" check .
  "$venv/bin/mypy"
  set -- --numprocesses=3 --dist=loadfile tests # most of the time they wait for a node to boot or an engine to start
fi

# crun refuses cgroup v1 with a v2 tree beside it, as some virtual machines have it: in a mount namespace of its own
# the tests see an empty directory there. A node of one cgroup version is left as it is.
export VENV=$venv
exec unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec "$VENV/bin/python" -m pytest "$@"' tests/run.sh "$@"
