#!/bin/bash
# Measure what reassert costs a container start, beside plain runc, in one interleaved run. As root:
#
#   sudo tests/bench/run.sh                                     everything, about 30 minutes
#   sudo tests/bench/run.sh --quick --only life,verbs           does it run at all
#   sudo tests/bench/run.sh --peer nvidia=/usr/bin/nvidia-container-runtime
#   sudo tests/bench/run.sh --help
#
# NRI beside a Go plugin:
#
#   tests/bench/nri.py --beside GO_PLUGIN --busy 25             with that Python, after this has run once
#
# Table on stdout; table, and JSON with every sample, in build/bench. REASSERT=… measures another frozen program.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/bench/run.sh: run it as root: sudo tests/bench/run.sh" >&2; exit 2; }
: "${PYTHON:=python3}"
export PYTHON

packaging/apt.sh runc busybox-static time
if [ -z "${REASSERT:-}" ] && [ ! -x dist/reassert/reassert ]; then
  packaging/build.sh
fi
stamp=$("$PYTHON" -VV | cat - packaging/requirements.txt | cksum | tr ' ' -)
venv=$PWD/build/venv-bench
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  echo "Installing what speaks NRI …" >&2
  rm -rf "$venv"
  "$PYTHON" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r packaging/requirements.txt
  echo "$stamp" > "$venv/stamp"
fi

# The tmpfs with the bundles is in a mount namespace of our own, and gone with it.
export PYTHONPATH=$PWD:$PWD/tests PYTHONDONTWRITEBYTECODE=1
exec unshare --mount --propagation private "$venv/bin/python" -m bench "$@"
