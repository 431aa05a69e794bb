#!/bin/sh
# The simulator of container starts (README.md): tests/simulator/run.sh [--seed N] [--steps N] [--tree DIR]
#
# Hashes of strings are the same in each run, so that a seed repeats it.
set -eu
here=$(dirname "$0")
PYTHONHASHSEED=0 PYTHONPATH="$here/../..:$here" exec "${PYTHON:-$here/../../build/venv-test/bin/python}" "$here/run.py" "$@"
