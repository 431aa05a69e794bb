"""Run the benchmarks. tests/bench/run.sh calls this and prepares what it needs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from harness.paths import REASSERT

from bench import chart
from bench.cases import GROUPS, Bench
from bench.node import Setup
from bench.results import Results

TMPFS = Path("/run/reassert-bench")


def main() -> int:
    """Run the given groups."""
    options = _options()
    unknown = set(options.only) - set(GROUPS)
    if unknown:
        raise SystemExit(f"--only {','.join(sorted(unknown))}: there are {', '.join(GROUPS)}")
    peers = dict(peer.partition("=")[::2] for peer in options.peer)
    rounds = 12 if options.quick else options.rounds
    with_tmpfs(TMPFS)
    others = dict(other.partition("=")[::2] for other in options.other)
    bench = Bench(Setup(TMPFS, options.runc, others), peers, rounds)
    begin = time.monotonic()
    for name in options.only or GROUPS:
        before = {row.case for row in bench.results.rows}
        GROUPS[name](bench)
        print(bench.results.table([row.case for row in bench.results.rows if row.case not in before]), flush=True)
        print()
        keep(bench.results, options, rounds, time.monotonic() - begin)
    print(f"{options.output}: bench.txt, bench.json, start.svg")
    return 0


def keep(results: Results, options: argparse.Namespace, rounds: int, seconds: float) -> None:
    """Write the result files, after each group, so that an aborted run keeps its results."""
    options.output.mkdir(parents=True, exist_ok=True)
    rows = [row.as_json() for row in results.rows]
    result = {"machine": machine(options.runc), "rounds": rounds, "seconds": round(seconds), "rows": rows}
    (options.output / "bench.json").write_text(json.dumps(result, indent=1))
    (options.output / "bench.txt").write_text(results.table() + "\n")
    if any(row.case == chart.CASE for row in results.rows):
        (options.output / "start.svg").write_text(chart.drawn(result))


def with_tmpfs(path: Path) -> None:
    """Mount an empty tmpfs, in the private mount namespace of run.sh."""
    path.mkdir(mode=0o755, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "reassert-bench", str(path)], check=True)


def machine(runc: str) -> dict[str, object]:
    """The machine of the measurements, and the size of the frozen tree."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    version = subprocess.run([runc, "--version"], capture_output=True, text=True).stdout.splitlines()
    tree = sum(file.lstat().st_size for file in REASSERT.parent.rglob("*"))
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpus": os.cpu_count(),
        "cpu": cpu.partition(":")[2].strip(),
        "kernel": platform.release(),
        "runc": version[0] if version else "",
        "frozen tree, MB": round(tree / 1e6, 1),
        "load": os.getloadavg(),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tests/bench/run.sh", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=60, help="per case; slow cases take a part of it (default: 60)")
    parser.add_argument("--quick", action="store_true", help="12 rounds: does it run at all")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], metavar="GROUP,…", help=", ".join(GROUPS)
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="nvidia=…/nvidia-container-runtime (its -hook beside it)",
    )
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another frozen reassert, cold and warm; may be repeated",
    )
    parser.add_argument("--runc", default=shutil.which("runc") or "/usr/sbin/runc", help="the real runtime")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory (default: build/bench)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
