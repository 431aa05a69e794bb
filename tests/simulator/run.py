"""Runs the simulator: `tests/simulator/run.sh --seed N --steps N`."""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
import time
from pathlib import Path

from actors import ROOT, simulate
from world import Violation


def main() -> int:
    """Returns 1 for a violation, and prints how to repeat it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="all chance of the run")
    parser.add_argument("--steps", type=int, default=1_000_000, help="simulated system calls; default 1,000,000")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the source tree whose code is run; default: this one")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    gc.disable()  # a collection at another moment would close files at another step
    began = time.process_time()
    try:
        node = simulate(chosen.seed, chosen.steps, chosen.tree.resolve())
    except Violation as error:
        print(error)
        print(f"repeat: tests/simulator/run.sh --seed {chosen.seed} --steps {chosen.steps}")
        return 1
    seconds, watch = time.process_time() - began, node.watch
    print(
        f"{node.world.steps} steps, {watch.started_count} containers started, {watch.refused_count} refused "
        f"({watch.failed_count} of them for a fault), events: {watch.warm} warm, {watch.cold} cold; "
        f"{node.world.now / 1e9:.0f} simulated seconds"
    )
    print(f"trace {node.world.trace & (1 << 64) - 1:016x}")
    print(f"{seconds:.1f} s of CPU, {node.world.steps / seconds:,.0f} steps a second", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
