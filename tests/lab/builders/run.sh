#!/bin/bash
# Drives real builders, given by a directory, with the wrapper: kaniko in a container, and buildkitd as a service.
#
#   sudo tests/lab/builders/run.sh DIR [pytest's arguments]
#
# DIR has programs of these names: kaniko's executor; BuildKit's buildkitd and buildctl. Debian has no package of them.
# Not in CI. Needs what tests/run.sh installs, and a frozen build (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/builders/run.sh: $*" >&2
  exit 2
}

[ -d "${1:-}" ] || fail "which programs? sudo tests/lab/builders/run.sh DIR"
REASSERT_TEST_BUILDERS=$(realpath -- "$1")
shift
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
export REASSERT_TEST_BUILDERS
exec unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest --verbose --tb=short tests/lab/builders/on_kaniko.py tests/lab/builders/on_buildkitd.py "$@"' \
  tests/lab/builders/run.sh "$@"
