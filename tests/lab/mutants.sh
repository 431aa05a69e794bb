#!/bin/bash
# Do the tests notice a product that is broken? Random mutants of the code, one at a time, each in a copy of the tree:
#
#   sudo tests/lab/mutants.sh --record [unit|engine]       first: which tests run which line, into build/mutants
#   sudo tests/lab/mutants.sh                              50 mutants; it prints the seed, and lists those that live
#   sudo tests/lab/mutants.sh --seed 7 --count 20 --only packaging/front
#   sudo tests/lab/mutants.sh --tiers unit                 without the type checker and the engine tests
#   sudo tests/lab/mutants.sh --again build/mutants/7.jsonl    those of a run that lived, after a test was mended
#
# Needs what `sudo tests/run.sh` has set up. tests/lab/mutants.toml has the mutants that were read and are equivalent.
set -eu
unset PYTHONDONTWRITEBYTECODE # to compile the tests takes each process of pytest five seconds
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] || { echo "tests/lab/mutants.sh: run it as root: sudo tests/lab/mutants.sh" >&2; exit 2; }
venv=$PWD/build/venv-mutants data=$PWD/build/mutants
# The program is not frozen here, and runtimes of another Debian have another C library than its Python.
elsewhere="not trixie and not forky and not sid and not 1.7 and not 2.1"
mkdir -p "$data"
site=$(echo build/venv-test/lib/python3*/site-packages)
stamp=$(cksum tests/lab/mutants.txt build/venv-test/stamp | cksum)
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  "$(readlink -f build/venv-test/bin/python)" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/lab/mutants.txt
  readlink -f "$site" > "$venv/lib/$(basename "$(dirname "$site")")/site-packages/tests.pth"
  # In each process of the program too, which leaves by posix._exit and posix.execve: coverage knows those of `os`.
  echo 'import os, posix; os.environ.get("COVERAGE_PROCESS_START") and (__import__("coverage").process_startup(),' \
    'setattr(posix, "_exit", os._exit), setattr(posix, "execve", os.execve))' \
    > "$venv/lib/$(basename "$(dirname "$site")")/site-packages/processes.pth"
  echo "$stamp" > "$venv/stamp"
fi

scratch=$(mktemp -d)
trap 'rmdir "$scratch"' EXIT
in_tmpfs() {
  mkdir -p /var/lib/reassert-tests
  unshare --mount --propagation private sh -c '
    mount -t tmpfs -o mode=0755 tmpfs "$0"
    mount -t tmpfs -o mode=0755 tmpfs /var/lib/reassert-tests
    if mountpoint -q /sys/fs/cgroup/unified; then mount -t tmpfs tmpfs /sys/fs/cgroup/unified; fi
    exec nice "$@"' "$scratch" "$@"
}

record() { # unit|engine [PYTEST ARGUMENT …]
  tier=$1
  shift
  rm -f "$data/$tier.coverage"*
  # A process that a test starts says by this variable of pytest which test that is.
  printf '[run]\nsource = hook\nparallel = true\npatch = _exit, execv\ncontext = ${PYTEST_CURRENT_TEST-}\ndata_file = %s\n' \
    "$data/$tier.coverage" > "$data/$tier.rc"
  export COVERAGE_PROCESS_START=$data/$tier.rc PYTEST_DEBUG_TEMPROOT=$scratch
  if [ "$tier" = unit ]; then
    set -- --fast --dist=worksteal --numprocesses=3 "${@:-tests/unit}"
  else
    mkdir -p "$data/program"
    printf '#!/bin/sh\nCOVERAGE_PROCESS_START=%s exec %s -I -c "%s" "$@"\n' "$data/$tier.rc" "$venv/bin/python" \
      "import sys; sys.path.insert(0, '$PWD'); from hook.__main__ import main; main()" > "$data/program/reassert"
    chmod +x "$data/program/reassert"
    packaging/front/build.sh "$data/program/front"
    export REASSERT=$data/program/reassert
    set -- --dist=loadscope --numprocesses=4 -k "$elsewhere" "${@:-tests/e2e}"
  fi
  # A test that fails for coverage's sake has run its lines too.
  in_tmpfs "$venv/bin/python" -m pytest -q -p no:cacheprovider --cov=hook --cov-config="$data/$tier.rc" \
    --cov-context=test --cov-report= "$@" || true
  cd "$data" && "$venv/bin/coverage" combine --rcfile="$data/$tier.rc" --append --quiet 2>/dev/null || true
}

if [ "${1:-}" = --record ]; then
  shift
  for tier in ${1:-unit engine}; do
    [ $# -eq 0 ] || shift
    (record "$tier" "$@")
  done
else
  build/venv-test/bin/mypy > /dev/null # its cache
  in_tmpfs "$venv/bin/python" tests/lab/mutants.py --scratch "$scratch" --engine "$elsewhere" "$@"
fi
