#!/bin/sh
# Fuzz one target by hand: tests/fuzz/run.sh TARGET [--seconds 3600] [LIBFUZZER_OPTION...]
#
# New inputs are kept in build/fuzz/TARGET, an input that fails in build/fuzz/TARGET-crash-…. It needs the virtual
# environment of tests/run.sh; for `front` clang and libclang-rt-14-dev, else a small mutator and gcc's sanitizers; with Go
# the second reading of JSON is Go's.
set -eu
cd "$(dirname "$0")/../.."
target=$1
shift
seconds=3600
if [ "${1:-}" = --seconds ]; then
  seconds=$2
  shift 2
fi
mkdir -p "build/fuzz/$target"
set -- -max_total_time="$seconds" -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 "$@"
if [ "$target" = front ] && ! command -v clang > /dev/null; then
  gcc -DREPLAY -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all '-DFRONT="../../packaging/front/front.c"' \
    -o build/fuzz/front.program tests/fuzz/front.c
  until=$(($(date +%s) + seconds))
  seed=$(date +%N | sed 's/^0*//')
  while [ "$(date +%s)" -lt "$until" ]; do
    seed=$((seed + 1))
    build/fuzz/front.program 100000 "$seed" tests/fuzz/corpus/front/* || { echo "$seed" > "build/fuzz/front-crash-$seed"; exit 1; }
  done
  exit 0
fi
if [ "$target" = front ]; then
  clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all '-DFRONT="../../packaging/front/front.c"' \
    -o build/fuzz/front.program tests/fuzz/front.c
  exec build/fuzz/front.program "$@" build/fuzz/front tests/fuzz/corpus/front
fi
exec build/venv-test/bin/python tests/fuzz/drive.py "$target" --corpus "build/fuzz/$target" "$@"
