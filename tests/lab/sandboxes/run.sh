#!/bin/sh
# The tests of tests/e2e/sandboxes with all clients of tests/e2e/sandboxes/clients.toml, in a Debian root of their own. Not in
# CI: to set up the root takes minutes of downloads, 60 s of CPU time and 1.3 GB.
#
#   sudo tests/lab/sandboxes/run.sh [PYTEST ARGUMENT…]
#
# It needs what tests/run.sh installs, and the frozen program in dist/ (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."
[ "$(id -u)" -eq 0 ] || { echo "run it as root: sudo tests/lab/sandboxes/run.sh" >&2; exit 2; }

tests/roots.sh sandboxes
pinned=tests/lab/sandboxes/requirements.txt pypi=build/sandboxes-pypi
if ! cmp -s $pinned $pypi/.complete; then
  rm -rf $pypi
  build/venv-test/bin/pip install --quiet --disable-pip-version-check --require-hashes --target $pypi -r $pinned
  cp $pinned $pypi/.complete
fi
export REASSERT_SANDBOXES=1 PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
exec unshare --mount --propagation private sh -c '
  mount -t tmpfs -o mode=0755 tmpfs "$PYTEST_DEBUG_TEMPROOT"
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest tests/e2e/sandboxes "$@"' tests/lab/sandboxes/run.sh "$@"
