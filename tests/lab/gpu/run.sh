#!/bin/bash
# Runs containers with NVIDIA's container toolkit behind reassert's wrapper, on a machine with an NVIDIA GPU.
#
#   sudo tests/lab/gpu/run.sh --bin DIR [pytest's arguments, such as -k void]
#
# DIR has the toolkit's programs, built from their source: nvidia-container-runtime, nvidia-container-runtime-hook,
# nvidia-ctk, nvidia-cdi-hook; and runc, where the machine has none. Needs the driver with nvidia-smi, /bin/busybox, no
# kubelet, a Python ($PYTHON) with pytest, hypothesis and protobuf, and a frozen build (packaging/build.sh). Nothing of the
# machine is changed: nvidia-ctk's specification is written in a mount namespace. Not in CI.
set -eu
cd "$(dirname "$0")/../../.."

fail() {
  echo "tests/lab/gpu/run.sh: $*" >&2
  exit 2
}

[ "${1-}" = --bin ] && [ -d "${2-}" ] || fail "which programs? sudo tests/lab/gpu/run.sh --bin DIR"
[ "$(id -u)" -eq 0 ] || fail "run it as root"
[ -x dist/reassert/reassert ] || fail "no frozen build: run packaging/build.sh"
REASSERT_TEST_NVIDIA=$(realpath -- "$2")
shift 2
export REASSERT_TEST_NVIDIA PYTHON=${PYTHON:-build/venv-test/bin/python} PATH="$PATH:$REASSERT_TEST_NVIDIA"
for program in nvidia-smi nvidia-container-runtime nvidia-container-runtime-hook nvidia-ctk nvidia-cdi-hook runc; do
  command -v "$program" > /dev/null || fail "$program is not there"
done
uname -sr
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nvidia-ctk --version | head -n 1
runc --version | head -n 1
dist/reassert/reassert --version
exec unshare --mount --propagation private sh -euc '
  mount -t tmpfs -o mode=0755 tmpfs /run
  mkdir /run/cdi
  nvidia-ctk cdi generate --output=/run/cdi/nvidia.yaml
  exec "$PYTHON" -m pytest -p no:cacheprovider --verbose --tb=short tests/lab/gpu/on_gpu.py "$@"' tests/lab/gpu/run.sh "$@"
