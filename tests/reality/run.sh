#!/bin/bash
# Start random hostile and innocent containers under real runtimes, through each adapter, and compare what their
# processes really have with a plain reading of the policy (README.md beside this file). As root:
#
#   sudo tests/reality/run.sh --runs 200 --seed 1     200 cases; without --seed a random one, which is printed
#   sudo tests/reality/run.sh --case FILE             one case again, as a find was saved
#   sudo tests/reality/run.sh --help
#
# Exit status: 0 no finds, 1 finds, 2 it could not run. REASSERT=… tries another frozen program.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/reality/run.sh: run it as root: sudo tests/reality/run.sh" >&2; exit 2; }
: "${PYTHON:=python3}"
if [ -z "${REASSERT:-}" ] && [ ! -x dist/reassert/reassert ]; then
  packaging/apt.sh runc crun busybox-static
  packaging/build.sh >&2
fi
export PYTHON PYTHONPATH=$PWD/tests PYTHONDONTWRITEBYTECODE=1
export REALITY_RUN=$$ REALITY_START_DIR=${OLDPWD:-$PWD}
export REALITY_SCRATCH=/run/reassert-reality-$$ # not one for all runs: to remove it would unmount it in another run

# Everything is made in namespaces of its own: processes and mounts end with them, whatever happens to the program.
status=0
unshare --mount --pid --fork --mount-proc --kill-child --propagation private sh -euc '
  # crun refuses cgroup v1 with a v2 tree beside it
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  mkdir "$REALITY_SCRATCH"
  mount -t tmpfs -o mode=0755 tmpfs "$REALITY_SCRATCH"
  for state in /run/runc /run/crun; do  # where runtimes keep state that are not told where
    mkdir -p "$state"
    mount -t tmpfs -o mode=0700 tmpfs "$state"
  done
  mount --make-shared "$REALITY_SCRATCH"
  "$PYTHON" -m reality "$@"' tests/reality/run.sh "$@" || status=$?

# What namespaces do not take along: empty cgroups. The last processes in them may still be on their way out.
cgroups() {
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    for left in "$hierarchy/reassert-reality-$$" "$hierarchy/kubepods/podreality-$$"; do
      if [ -d "$left" ]; then echo "$left"; fi
    done
  done
}
for _ in $(seq 50); do
  [ -n "$(cgroups)" ] || break
  cgroups | while read -r left; do find "$left" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
  [ -z "$(cgroups)" ] || sleep 0.1
done
rmdir "$REALITY_SCRATCH" 2>/dev/null || true
exit "$status"
