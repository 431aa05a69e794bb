#!/bin/sh
# The tests of tests/e2e/trust with Node.js and Java too, in a Debian root of their own. Not in CI: to set up the root takes
# minutes of downloads, 35 s of CPU time and 0.7 GB. The tests themselves take a minute.
#
#   sudo tests/lab/trust/run.sh [PYTEST ARGUMENT…]
#
# It needs what tests/run.sh installs, and the frozen program in dist/ (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."
[ "$(id -u)" -eq 0 ] || { echo "run it as root: sudo tests/lab/trust/run.sh" >&2; exit 2; }

REASSERT_TRUST_ROOT=$PWD/build/roots/trust
tests/roots.sh trust
export REASSERT_TRUST_ROOT PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
exec unshare --mount --propagation private sh -c '
  mount -t tmpfs -o mode=0755 tmpfs "$PYTEST_DEBUG_TEMPROOT"
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest tests/e2e/trust "$@"' tests/lab/trust/run.sh "$@"
