#!/bin/bash
# Runs the engine tests with programs that Debian does not have: the newest containerd, runc or crun.
#
#   sudo tests/lab/engines/run.sh --bin DIR                          every test of Debian forky's engines
#   sudo tests/lab/engines/run.sh --bin DIR tests/e2e/nri -k 2.1     the arguments are pytest's; forky's containerd is "2.1"
#
# DIR has programs of these names: containerd with containerd-shim-runc-v2 and ctr, runc, crun. They replace Debian
# forky's in build/roots/forky, in a mount namespace alone, so nothing stays of them. What DIR lacks is forky's. Then
# tests/run.sh runs; it sets up the machine. Not in CI.
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/engines/run.sh: $*" >&2
  exit 2
}

[ "${1:-}" = --bin ] && [ -d "${2:-}" ] || fail "which programs? sudo tests/lab/engines/run.sh --bin DIR"
[ "$(id -u)" -eq 0 ] || fail "run it as root"
programs=$(realpath -- "$2")
shift 2
case " $* " in
*" tests/"*) ;;
*) set -- tests/e2e -k "forky or 2.1 or k3s" --numprocesses=4 --dist=loadscope "$@" ;;
esac
tests/roots.sh forky
# shellcheck disable=SC2016  # for the shell in the namespace
exec unshare --mount --propagation private bash -euc '
  programs=$1 root=$2
  shift 2
  mkdir -p build/engines
  mount -t tmpfs -o mode=0755 tmpfs build/engines
  mkdir build/engines/upper build/engines/work
  mount -t overlay overlay -o "lowerdir=$root,upperdir=build/engines/upper,workdir=build/engines/work" "$root"
  for program in containerd containerd-shim-runc-v2 ctr crun runc; do
    [ -x "$programs/$program" ] || continue
    place=bin
    [ "$program" != runc ] || place=sbin
    install -m 0755 "$programs/$program" "$root/usr/$place/$program"
    echo "$program: $(chroot "$root" "$program" --version 2>&1 | head -n 1)"
  done
  REASSERT_TEST_FORMAT=$(chroot "$root" containerd config default | sed -n "s/^version = //p")
  export REASSERT_TEST_FORMAT
  exec tests/run.sh "$@"' tests/lab/engines/run.sh "$programs" "$(realpath build/roots/forky)" "$@"
