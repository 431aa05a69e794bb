"""Runs a runtime's own suite with it alone and with reassert in front, and compares. See tests/lab/borrowed/run.sh."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lab.borrowed.compare import ABSENT, NOT_OK, OK, SKIP, BadList, Difference, States, differences, read_list
from lab.borrowed.suite import SUITES, Missing, Suite

HERE = Path(__file__).resolve().parent
AGAIN = 2
"""How often a test that differs is run again in both ways."""

POLICIES = {
    "empty": """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: empty}
spec: {rules: []}
""",
    "reserving": """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: reserving}
spec:
  rules:
  - name: unused-by-the-suite
    env:
    - {name: REASSERT_BORROWED, value: reserved}
    - {name: REASSERT_BORROWED_ABSENT, absent: true}
    mounts:
    - {hostPath: RESERVED, mountPath: /var/spool, readOnly: true}
""",
}


class Front:
    """reassert in front of a runtime, with one policy. `program`: the dispatcher, named as the runtime is."""

    def __init__(self, reassert: Path, runtime: Path, policy: str, directory: Path) -> None:
        directory.mkdir()
        (directory / "reserved").mkdir()
        file = directory / "policy.yaml"
        file.write_text(policy.replace("RESERVED", str(directory / "reserved")))
        store = ["--policy", str(file), "--store", str(directory / "store")]
        subprocess.run([str(reassert), "policy", "compile", *store], check=True, stdout=subprocess.DEVNULL)
        self.events = directory / "events.jsonl"
        made = subprocess.run(
            [str(reassert), "dispatcher", "--real", str(runtime), *store, "--events", str(self.events)],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        )
        (directory / "bin").mkdir()
        self.program = directory / "bin" / runtime.name
        self.program.write_text(made.stdout)
        self.program.chmod(0o755)


class Run:
    """The suite's files, one after the other, with one runtime."""

    def __init__(self, title: str, suite: Suite, runtime: Path, limit: float) -> None:
        self.title = title
        self._suite = suite
        self._runtime = runtime
        self._limit = limit

    def all(self, files: list[str]) -> dict[str, States]:
        """Run them all and say how it went in one line."""
        start = time.monotonic()
        results = {file: self._suite.run(file, self._runtime, self._limit) for file in files}
        counted = Counter(state for states in results.values() for state in states.values())
        counts = ", ".join(f"{counted[state]} {state}" for state in (OK, NOT_OK, SKIP))
        print(f"{self.title}: {counts}, {time.monotonic() - start:.0f} s", flush=True)
        return results

    def one(self, file: str, name: str) -> str:
        """Run one test."""
        return self._suite.run(file, self._runtime, self._limit, name).get(name, ABSENT)


def compare(options: argparse.Namespace, scratch: Path) -> bool:
    """Run everything, print what was found, and say whether the differences are those of the list.

    A test that differs is run again in both ways. If it does not differ again, it is named as flaky and not judged.
    """
    listed = read_list(options.list.read_text())
    suite = SUITES[options.suite](options.source, scratch)
    files = suite.files(options.files)
    for note in suite.notes:
        print(f"note: {note}", flush=True)
    plain = Run(f"{options.runtime} alone", suite, options.runtime, options.limit)
    alone = plain.all(files)
    if not any(state == OK for states in alone.values() for state in states.values()):
        raise Missing("no test of the suite passes with the runtime alone; there is nothing to compare")
    found: set[Difference] = set()
    flaky: set[Difference] = set()
    for title, policy in POLICIES.items():
        front = Front(options.reassert, options.runtime, policy, scratch / title)
        run = Run(f"with reassert, {title} policy", suite, front.program, options.limit)
        results = run.all(files)
        if title == "reserving" and not front.events.exists():
            raise Missing("reassert wrote no event: it edited no container of the suite")
        for each in differences(alone, results):
            again = [(plain.one(each.file, each.name), run.one(each.file, each.name)) for _ in range(AGAIN)]
            (found if each[2:] in again else flaky).add(each)
    gone = {each for each in listed.keys() - found - flaky if each.name in alone.get(each.file, {})}
    for file, states in alone.items():
        for name in (name for name, state in states.items() if state == NOT_OK):
            print(f"fails with the runtime alone, so says nothing: {file} | {name}")
    for each in sorted(flaky - found):
        print(f"flaky, not judged: {each}")
    for each in sorted(found):
        print(f"listed: {each} | {listed[each]}" if each in listed else f"DIFFERS, and is not in the list: {each}")
    for each in sorted(gone):
        print(f"NO LONGER DIFFERS, remove it from {options.list.name}: {each}")
    unlisted = found - listed.keys()
    print(f"differences: {len(found & listed.keys())} listed, {len(unlisted)} not listed; {len(gone)} lines to remove")
    return not unlisted and not gone


def main() -> int:
    """The command. 0: the differences are those of the list; 1: they are not; 2: it could not be run."""
    parser = argparse.ArgumentParser(prog="tests/lab/borrowed/run.sh")
    parser.add_argument("suite", choices=list(SUITES), help="whose suite")
    parser.add_argument("source", type=Path, metavar="DIR", help="source tree of the version that is installed")
    parser.add_argument("files", nargs="*", metavar="FILE", help="only these test files")
    parser.add_argument("--runtime", type=Path, help="the runtime (default: that in PATH)")
    parser.add_argument("--reassert", type=Path, required=True, help="the frozen program (default: in dist/)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one test file (default: 900)")
    parser.add_argument("--list", type=Path, help="differences that have a reason (default: SUITE.differences)")
    options = parser.parse_args()
    options.list = options.list or HERE / f"{options.suite}.differences"
    options.runtime = options.runtime or shutil.which(options.suite)
    if not options.runtime or not os.access(options.runtime, os.X_OK):
        parser.error(f"no runtime {options.runtime or options.suite}; install it or give --runtime")
    options.runtime = Path(options.runtime).absolute()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda number, _: sys.exit(128 + number))
    # Below /var/lib: a policy has to lie where only root writes.
    scratch = Path(tempfile.mkdtemp(prefix="reassert-borrowed.", dir="/var/lib"))
    scratch.chmod(0o755)
    try:
        return 0 if compare(options, scratch) else 1
    except (Missing, BadList, FileNotFoundError) as error:
        print(f"tests/lab/borrowed/run.sh: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
