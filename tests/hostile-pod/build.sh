#!/bin/sh
# Makes the suite one file, which needs Python 3.11 and a static busybox: tests/hostile-pod/build.sh FILE
set -eu
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/*.py "$here"/*.json "$work"
find "$work" -exec touch -d 1980-01-02 {} + # the same bytes each time
"${PYTHON:-python3}" -m zipapp "$work" --output "$1" --python "/usr/bin/env python3"
