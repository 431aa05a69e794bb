#!/bin/sh
# Real package managers install a package of CA files in containers, with each `trust.mount`: apt-get, dnf, dnf5, zypper and
# pacman of Debian forky, each from a repository that the test makes. Not in CI: to set up the root takes 4 minutes.
#
#   sudo tests/lab/trust/installers.sh [--bin DIR] [PYTEST ARGUMENT…]
#
# DIR: `apk` and `microdnf`, which Debian does not have, built for Debian forky, with the libraries that forky lacks. It needs what tests/run.sh installs, and
# the frozen program in dist/ (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."
[ "$(id -u)" -eq 0 ] || { echo "run it as root: sudo tests/lab/trust/installers.sh" >&2; exit 2; }
if [ "${1:-}" = --bin ]; then
  REASSERT_INSTALLERS_BIN=$(realpath -- "$2")
  export REASSERT_INSTALLERS_BIN
  shift 2
fi

tests/roots.sh installers
export REASSERT_TRUST_ROOT=$PWD/build/roots/installers PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
exec unshare --mount --propagation private sh -c '
  mount -t tmpfs -o mode=0755 tmpfs "$PYTEST_DEBUG_TEMPROOT"
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest tests/lab/trust/on_installers.py "$@"' tests/lab/trust/installers.sh "$@"
