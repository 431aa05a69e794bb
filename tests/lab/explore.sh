#!/bin/bash
# Look for what no kept seed shows: random containers (tests/reality), each target of tests/fuzz, the simulator, the
# properties of the unit tests, and mutants, each with new seeds. Before a release, and while you work on what they try.
#
#   sudo tests/lab/explore.sh            60 minutes
#   sudo tests/lab/explore.sh 600        ten hours; each part gets its share of them
#   sudo tests/lab/explore.sh 30 fuzz    only that part: reality, fuzz, simulator, properties or mutants
#
# Each find is a file below build/explore. The last lines say where to keep it, so that CI tries it from then on.
# Exit status: 0 no find, 1 finds, 2 it could not run. Needs what `sudo tests/run.sh` has set up.
set -eu
cd "$(dirname "$0")/../.."
fail() {
  echo "tests/lab/explore.sh: $*" >&2
  exit 2
}
minutes=${1:-60} only=${2:-}
case $minutes in '' | *[!0-9]* | 0) fail "'$minutes' is no number of minutes" ;; esac
case $only in '' | reality | fuzz | simulator | properties | mutants) ;; *) fail "no part is called '$only'" ;; esac
[ "$(id -u)" -eq 0 ] || fail "run it as root: sudo tests/lab/explore.sh"
[ -x build/venv-test/bin/python ] && [ -x dist/reassert/reassert ] || fail "run sudo tests/run.sh first"
finds=build/explore
mkdir -p "$finds"
export PYTHON=$PWD/build/venv-test/bin/python
found=0

share() { # PART PERCENT: sets `seconds`; false if the part is not wanted
  [ -z "$only" ] || [ "$only" = "$1" ] || return 1
  seconds=$((minutes * 60 * $2 / 100))
  [ -z "$only" ] || seconds=$((minutes * 60))
  echo "== $1, $seconds s"
}
found_in() { # FILE, and what to do with it
  found=1
  echo "FIND $1: $2"
}

if share reality 30; then
  status=0
  tests/reality/run.sh --runs 1000000 --seconds "$seconds" --finds "$PWD/$finds/reality" > "$finds/reality.log" 2>&1 || status=$?
  tail -n 5 "$finds/reality.log"
  for file in "$finds"/reality/*.json; do
    [ ! -e "$file" ] || found_in "$file" "mend it, then mv it to tests/reality/kept/"
  done
fi

if share fuzz 30; then
  targets=$(ls tests/fuzz/corpus)
  each=$((seconds / $(echo "$targets" | wc -l)))
  for target in $targets; do
    tests/fuzz/run.sh "$target" --seconds $((each > 0 ? each : 1)) > "$finds/fuzz-$target.log" 2>&1 ||
      tail -n 20 "$finds/fuzz-$target.log"
    for file in build/fuzz/"$target"-crash-*; do
      [ ! -e "$file" ] || found_in "$file" "mend it, then mv it to tests/fuzz/corpus/$target/"
    done
  done
fi

if share simulator 10; then
  until=$((SECONDS + seconds))
  while [ $SECONDS -lt $until ]; do
    seed=$RANDOM$RANDOM
    tests/simulator/run.sh --seed "$seed" --steps 40000 > "$finds/simulator.log" 2>&1 ||
      { mv "$finds/simulator.log" "$finds/simulator-$seed.log"
        found_in "$finds/simulator-$seed.log" "mend it, then add its seed to tests/simulator/seeds"; }
  done
fi

if share properties 10; then
  until=$((SECONDS + seconds))
  while [ $SECONDS -lt $until ]; do
    REASSERT_EXPLORE=1 "$PYTHON" -m pytest -q -n 2 tests/unit -m hypothesis > "$finds/properties.log" 2>&1 ||
      { mv "$finds/properties.log" "$finds/properties-$until.log"
        found_in "$finds/properties-$until.log" "add its example to the test as @example"; break; }
  done
fi

if share mutants 20; then
  until=$((SECONDS + seconds))
  [ -e build/mutants/unit.coverage ] || tests/lab/mutants.sh --record unit > "$finds/mutants.log" 2>&1 || :
  while [ $SECONDS -lt $until ]; do
    seed=$RANDOM$RANDOM
    tests/lab/mutants.sh --seed "$seed" --count 10 --tiers unit,types > "$finds/mutants.log" 2>&1 ||
      { mv "$finds/mutants.log" "$finds/mutants-$seed.log"
        found_in "$finds/mutants-$seed.log" "a test for each that lived, or a row in tests/lab/mutants.toml with the reason"; }
  done
fi
[ $found -eq 0 ] && echo "No find."
exit $found
