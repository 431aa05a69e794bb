#!/bin/bash
# Drives a real CRI-O, given by path, on a booted node: install, verify, override, exec, NRI, restart, uninstall.
#
#   sudo tests/lab/crio/run.sh CRIO PINNS [pytest's arguments]
#
# CRIO, PINNS: paths of the programs (Debian has no package). The node is Debian trixie's root (tests/roots.sh trixie)
# with its crun and runc, and with conmon, and podman to load images, of bookworm's root. Not in CI. Needs what
# tests/run.sh installs, and a frozen build (packaging/build.sh).
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/crio/run.sh: $*" >&2
  exit 2
}

[ $# -ge 2 ] || fail "which CRI-O? sudo tests/lab/crio/run.sh CRIO PINNS"
REASSERT_TEST_CRIO=$(realpath -- "$1")
REASSERT_TEST_PINNS=$(realpath -- "$2")
shift 2
for program in "$REASSERT_TEST_CRIO" "$REASSERT_TEST_PINNS"; do
  [ -x "$program" ] || fail "$program is no program"
done
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
export REASSERT_TEST_CRIO REASSERT_TEST_PINNS
"$REASSERT_TEST_CRIO" --version | head -n 1
exec unshare --mount --propagation private sh -c '
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec build/venv-test/bin/python -m pytest --verbose --tb=short tests/lab/crio/on_crio.py "$@"' tests/lab/crio/run.sh "$@"
