"""How long `reassert trust build` takes, and how long a rotation changes files: python tests/bench/trust.py [--cas N].

This machine's system roots and CAs made here, the frozen program, wall and CPU time. As any user.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    """Print a table."""
    from unit.trust.authority import bundle, ca, key

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cas", type=int, default=20, metavar="N", help="number of added CAs")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--program", default=str(ROOT / "dist/reassert/reassert"), metavar="PATH")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        made = [ca(f"CA {number}", signer=key(number)) for number in range(options.cas)]
        source = directory / "cas.pem"
        source.write_bytes(bundle(*made))
        command = [options.program, "trust", "build", "--add", str(source), "--out"]

        def first() -> None:
            run([*command, str(directory / f"store-{time.monotonic_ns()}")])

        store = str(directory / "store")
        run([*command, store])

        def rotate() -> None:
            source.write_bytes(bundle(*made[1:], ca("Another CA", signer=key(99))))
            run([*command, store, "--allow-removal"])

        cases: list[tuple[str, Callable[[], None]]] = [
            ("a first build", first),
            ("a rotation of one CA", rotate),
            ("a build that changes nothing", lambda: run([*command, store])),
        ]
        for title, case in cases:
            print(f"{title:30} {measured(case, options.rounds)}")
        print(f"{'live files change for':30} {window(Path(store), options.rounds)}")


def run(command: list[str]) -> None:
    """Run it; its warnings about this machine's roots are not shown."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measured(case: Callable[[], None], rounds: int) -> str:
    """Median and maximum of the wall time, median of the CPU time."""
    wall, used = [], []
    for _ in range(rounds):
        before, began = os.times(), time.monotonic()
        case()
        wall.append(time.monotonic() - began)
        after = os.times()
        used.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return f"median {statistics.median(wall):.2f} s, at most {max(wall):.2f} s; CPU {statistics.median(used):.2f} s"


def window(store: Path, rounds: int) -> str:
    """From the first rename in live to the last change, in this process."""
    from unit.trust.authority import ca, key

    from hook.ops.trust.generation import Store, read_tree

    times = []
    real = Store._apply

    def timed(self: Store, changes: object) -> None:
        began = time.monotonic()
        real(self, changes)  # type: ignore[arg-type]  # a timer around it
        times.append(time.monotonic() - began)

    Store._apply = timed  # type: ignore[assignment,method-assign]  # a timer around it
    from hook.ops.trust.build import Sources, build

    extra = store.parent / "extra.pem"
    for number in range(rounds):
        ca(f"Extra {number}", signer=key(number)).at(extra)
        build(str(store), Sources([str(extra)], allow_removal=True))
    return f"median {statistics.median(times) * 1000:.0f} ms, with {len(read_tree(store / 'live'))} files"


if __name__ == "__main__":
    main()
