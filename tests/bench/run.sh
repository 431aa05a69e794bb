#!/bin/bash
# Measure what reassert costs a container start, beside plain runc, in one interleaved run. As root:
#
#   sudo tests/bench/run.sh                                     everything, about 30 minutes
#   sudo tests/bench/run.sh --quick --only life,verbs           does it run at all
#   sudo tests/bench/run.sh --peer nvidia=/usr/bin/nvidia-container-runtime --peer oci-add-hooks=/usr/bin/oci-add-hooks
#   sudo tests/bench/run.sh --help
#   sudo tests/bench/run.sh profile                             where the time of one start goes, by strace
#
# The last table says which of the agent's goals are met (goals.md, for docs/performance.md); NRI beside a Go plugin:
#
#   tests/bench/nri.py --beside GO_PLUGIN --busy 25             with that Python, after this has run once
#
# Table on stdout; table, JSON with every sample, and a plot in build/bench. REASSERT=… measures another frozen program.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/bench/run.sh: run it as root: sudo tests/bench/run.sh" >&2; exit 2; }
: "${PYTHON:=python3}"
export PYTHON

packaging/apt.sh runc busybox-static strace time
if [ -z "${REASSERT:-}" ] && [ ! -x dist/reassert/reassert ]; then
  packaging/build.sh
fi
stamp=$("$PYTHON" -VV | cat - packaging/requirements.txt tests/bench/requirements.txt | cksum | tr ' ' -)
venv=$PWD/build/venv-bench
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  echo "Installing what speaks NRI, and what draws the plot …" >&2
  rm -rf "$venv"
  "$PYTHON" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r packaging/requirements.txt
  if "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r tests/bench/requirements.txt; then
    echo "$stamp" > "$venv/stamp"
  else
    echo "tests/bench/run.sh: no matplotlib, so no plot; the figures do not need it" >&2
  fi
fi

module=bench
if [ "${1:-}" = profile ]; then
  module=bench.stages
  shift
fi
# The tmpfs with the bundles is in a mount namespace of our own, and gone with it.
export PYTHONPATH=$PWD/tests PYTHONDONTWRITEBYTECODE=1
exec unshare --mount --propagation private "$venv/bin/python" -m "$module" "$@"
