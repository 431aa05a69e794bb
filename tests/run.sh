#!/bin/bash
# The tests. CONTRIBUTING.md says which command to take when.
#
#   tests/run.sh --fast                    as any user: formatter, linter, types, and the unit tests that need neither root
#                                         nor a build
#   tests/run.sh --fast tests/unit -k glob only some of them; the arguments are pytest's
#   sudo tests/run.sh                      set up a Debian machine, then run all tests, with real runtimes; the same
#                                         inputs each time (tests/lab/explore.sh tries new ones)
#   sudo tests/run.sh --rest               the same without what `--fast` runs
#   sudo tests/run.sh --set-up             only set it up
#   sudo tests/run.sh tests/e2e/test_hook.py -k audit
#
# In CI (CI=true) a test that is skipped because the machine lacks something counts as failed, and `--fast` tries as many
# examples as the others.
set -eu
cd "$(dirname "$0")/.."
# Debian's Python is built with profile-guided optimisation, which others often lack: the tests take less time with it.
# root installs what it lacks (packaging/apt.sh).
is_usable() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { [ "$(id -u)" -eq 0 ] || "$1" -c 'import ensurepip'; }
}
if [ -z "${PYTHON:-}" ]; then
  PYTHON=/usr/bin/python3
  is_usable $PYTHON 2> /dev/null || PYTHON=python3
fi
export PYTHON
unset PYTHONDONTWRITEBYTECODE # to compile the tests takes a process of pytest five seconds
venv=$PWD/build/venv-test

fail() {
  echo "tests/run.sh: $*" >&2
  exit 2
}

make_venv() {
  stamp=$("$PYTHON" -VV | cat - packaging/requirements.txt tests/requirements.txt | cksum | tr ' ' -)
  [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  echo "Installing the test tools into build/venv-test; pip needs a network for that …"
  rm -rf "$venv" || fail "build/venv-test is another user's and out of date; remove it: sudo rm -r build/venv-test"
  "$PYTHON" -m venv "$venv" || fail "$PYTHON cannot make virtual environments; on Debian: apt-get install python3-venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
    -r packaging/requirements.txt -r tests/requirements.txt
  echo "$stamp" > "$venv/stamp"
}

check() {
  "$venv/bin/ruff" format --check . && "$venv/bin/ruff" check . && "$venv/bin/mypy"
}

# Runs the tests as root of a user namespace if the kernel allows one, since a third of the tests need root rights. The
# root user runs the same tests.
fast() {
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$("$PYTHON" -V) is too old; set PYTHON"
  make_venv
  checking=
  if [ $# -eq 0 ]; then
    mkdir -p build
    check > build/check.log 2>&1 & # in parallel to the tests, which are idle at times
    checking=$!
    set -- --numprocesses=2 --dist=worksteal tests/unit # to collect the others takes longer than many tests
  fi
  set -- "$venv/bin/python" -m pytest --fast --quiet "$@"
  status=0
  tests/rootless.sh "$@" || status=$?
  if [ "$status" -eq 125 ] && [ "${CI:-}" != true ]; then
    echo "Users cannot create user namespaces on this machine: tests that need root are left out."
    status=0
    "$@" || status=$?
  fi
  if [ -n "$checking" ]; then
    echo "Formatter, linter and types:"
    wait "$checking" || status=1
    cat build/check.log
  fi
  exit "$status"
}

if [ "${1:-}" = --fast ]; then
  shift
  fast "$@"
fi
rest=
set_up=
case ${1:-} in
--rest) rest=--rest && shift ;;
--set-up) set_up=yes && shift ;;
esac
[ "$(id -u)" -eq 0 ] || fail "run it as root: sudo tests/run.sh; without root: tests/run.sh --fast"

# How long each part took, for the end.
parts=
took() { # NAME
  parts="$parts$(printf '%5d s  %s' $((SECONDS - began)) "$1")
"
  began=$SECONDS
}

began=$SECONDS
packaging/apt.sh runc crun containerd podman busybox-static strace debootstrap mandoc openssl curl wget git umoci rpmlint \
  rpm runsc p11-kit jq kubernetes-client iproute2 libc6-dev chromium-headless-shell zsh fish patch skopeo
tests/tool.sh prometheus promtool
tests/tool.sh docker-registry docker-registry
took "packages"
units=
for argument; do
  case $argument in
  tests/unit* | tests/fuzz) [ "$units" = no ] || units=yes ;;
  tests/*) units=no ;;
  esac
done
if [ "$units" != yes ]; then
  tests/roots.sh bookworm trixie forky sid # containerd 1.6, 1.7 and 2.1; docker 28, podman 5.8 and runsc of today
  took "root file systems"
fi
make_venv
took "test tools"
if [ -n "$set_up" ]; then
  printf '%s' "$parts"
  exit
fi
checking=
if [ $# -eq 0 ]; then
  # Beside the build: each has a core. To collect the tests compiles them, once for all workers.
  { check && { "$venv/bin/python" -m pytest --fast --quiet --collect-only tests > build/collected.log || :; }; } \
    > build/check.log 2>&1 &
  checking=$!
fi
echo "Building reassert …"
packaging/build.sh
took "build"
if [ -n "$checking" ]; then
  wait "$checking" || { cat build/check.log; exit 1; }
  cat build/check.log
  took "formatter, linter and types, after the build"
  # More workers than cores: they wait for a node to boot, an engine to start, or a deadline to pass.
  set -- --numprocesses=6 --dist=loadscope --no-loadscope-reorder --durations=20 tests
fi

# In its own mount namespace, for two reasons. First, scratch directories are on a tmpfs: the tests write many small
# files, and the program waits until each is on the disk. Second, crun does not work with cgroup v1 if a v2 tree is
# mounted beside it, as on some virtual machines: the tests see an empty directory instead. A machine with one cgroup
# version stays as it is.
export VENV=$venv REASSERT_WHOLE=1 PYTEST_DEBUG_TEMPROOT=/var/lib/reassert-tests
mkdir -p "$PYTEST_DEBUG_TEMPROOT"
status=0
# shellcheck disable=SC2086  # none or one
unshare --mount --propagation private sh -c '
  mount -t tmpfs -o mode=0755 tmpfs "$PYTEST_DEBUG_TEMPROOT"
  if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
  exec "$VENV/bin/python" -m pytest "$@"' tests/run.sh $rest "$@" || status=$?
took "tests"
printf '\n%s' "$parts"
exit "$status"
