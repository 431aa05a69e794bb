"""The command behind run.sh: cases for the workers, finds and a table for whoever called."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from reality.node import REASSERT, runtimes
from reality.start import ADAPTERS
from reality.worker import Job, work

WORKERS = 2
SHRINK_SECONDS = 6.0


def main() -> int:
    """Run the cases; returns the exit status."""
    options = _options()
    here = Path(os.environ.get("REALITY_START_DIR", "."))
    chosen = [name for name in runtimes() if not options.runtime or name in options.runtime]
    missing = [str(path) for path in (REASSERT,) if not os.access(path, os.X_OK)]
    if missing or not chosen:
        print(f"tests/reality: not there: {', '.join(missing) or options.runtime}", file=sys.stderr)
        return 2
    adapters = tuple(options.adapter or ADAPTERS)
    shrinking = 0.0 if options.no_shrink or (options.case and not options.finds) else SHRINK_SECONDS
    if options.case:
        jobs = []
        for file in options.case:
            saved = json.loads((here / file).read_text())
            names = chosen if options.runtime or "runtime" not in saved else [saved["runtime"]]
            through = adapters if options.adapter or "adapter" not in saved else (saved["adapter"],)
            jobs += [
                Job(0, len(jobs) + at, name, through, saved.get("case", saved), shrinking)
                for at, name in enumerate(names)
            ]
    else:
        seed = secrets.randbelow(10**9) if options.seed is None else options.seed
        print(f"tests/reality: seed {seed}, {options.runs} cases, {', '.join(chosen)}, {REASSERT}", flush=True)
        numbers = range(options.start, options.start + options.runs)
        jobs = [
            Job(seed, number, chosen[(number + number // len(chosen)) % len(chosen)], adapters, None, shrinking)
            for number in numbers
        ]
    if options.show:
        from reality.generate import case as generated

        for job in jobs:
            print(json.dumps(job.case or generated(job.seed, job.number), indent=1))
        return 0
    began = time.monotonic()
    workers = min(options.workers, len(jobs))
    results = _share(jobs, workers, began + options.hurry, began + options.seconds, options.agent)
    return _tell(results, here / options.finds if options.finds else None, len(jobs), time.monotonic() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/reality/run.sh", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="so many cases (default: 200)")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed makes the same cases (default: random, printed)"
    )
    parser.add_argument("--start", type=int, default=0, metavar="N", help="number of the first case of the seed")
    parser.add_argument("--case", metavar="FILE", nargs="+", help="only the cases of these files, as finds are saved")
    parser.add_argument("--finds", metavar="DIR", help="save each distinct find there")
    parser.add_argument("--runtime", action="append", metavar="NAME", help="only this runtime; again for more")
    parser.add_argument(
        "--adapter", action="append", choices=ADAPTERS, help="only through this adapter; again for more"
    )
    parser.add_argument(
        "--agent", action="store_true", help="start through the resident agent, and compare with the cold start"
    )
    parser.add_argument(
        "--workers", type=int, default=WORKERS, metavar="N", help=f"at the same time (default: {WORKERS})"
    )
    parser.add_argument(
        "--hurry", type=float, default=3600, metavar="N", help="after N seconds try each case through one adapter only"
    )
    parser.add_argument(
        "--seconds", type=float, default=36000, metavar="N", help="begin no further case after N seconds; status 2"
    )
    parser.add_argument("--no-shrink", action="store_true", help="leave finds as large as they are")
    parser.add_argument("--show", action="store_true", help="print the cases, start nothing")
    return parser.parse_args()


def _in_time(jobs: list[Job], hurry: float, until: float) -> Iterator[Job]:
    for job in jobs:
        now = time.monotonic()
        if now > until:
            return
        yield replace(job, one_adapter=True, shrink_seconds=0) if now > hurry else job


def _share(jobs: list[Job], workers: int, hurry: float, until: float, agent: bool) -> list[dict[str, Any]]:
    """Results of all jobs, done by forked workers, each taking every so manieth job."""
    running = []
    for number in range(workers):
        # Not a pipe: it would hold up each worker until those before it are done.
        file = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed below, after the worker has ended
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                mine = _in_time(jobs[number::workers], hurry, until)
                work(f"w{number}", mine, file, agent)
                file.flush()
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        running.append((pid, file))
    results = []
    for pid, file in running:
        if os.waitpid(pid, 0)[1]:
            print("tests/reality: a worker ended before its cases were done", file=sys.stderr)
            raise SystemExit(2)
        file.seek(0)
        results += [json.loads(line) for line in file]
        file.close()
    return sorted(results, key=lambda result: int(result["number"]))


def _tell(results: list[dict[str, Any]], directory: Path | None, jobs: int, seconds: float) -> int:
    table: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    finds: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        for adapter, outcome in result["outcomes"].items():
            table[adapter, result["runtime"]][outcome] += 1
        for find in result["finds"]:
            table[find["adapter"], find["runtime"]]["violations"] += 1
            known = finds.setdefault((find["kind"], find["shape"]), {**find, "seen": []})
            known["seen"].append(f"{find['adapter']} {find['runtime']}")
    for number, find in enumerate(find for _, find in sorted(finds.items())):
        path = "not saved; --finds DIR"
        times, find["seen"] = len(find["seen"]), sorted(set(find["seen"]))
        if directory:
            directory.mkdir(parents=True, exist_ok=True)
            name = f"{number:03d}-{find['kind'].replace(' ', '-')}.json"
            find["replay"] = find["replay"].replace("FILE", name)
            (directory / name).write_text(json.dumps(find, indent=1) + "\n")
            path = str(directory / name)
        through = sorted({one.split()[0] for one in find["seen"]})
        under = sorted({one.split()[1] for one in find["seen"]})
        print(f"FIND {find['kind']} ({', '.join(through)}; {', '.join(under)}; {times} times): {find['shape']}")
        print(f"     {find['detail'][-400:]!r}\n     {path}" + ("" if directory else "\n" + json.dumps(find["case"])))
    columns = (
        "innocent started",
        "started",
        "refused",
        "innocent refused",
        "runtime refuses",
        "invalid policy",
        "violations",
    )
    print(f"\n{'adapter':<10} {'runtime':<14}" + "".join(f"{column:>17}" for column in columns))
    for (adapter, runtime), counts in sorted(table.items()):
        print(f"{adapter:<10} {runtime:<14}" + "".join(f"{counts[column]:>17}" for column in columns))
    answers = sum((Counter(result["agent"]) for result in results), Counter[str]())
    if answers:
        print("\nagent: " + ", ".join(f"{count} {answer}" for answer, count in answers.most_common()))
    errors = [result for result in results if result["error"]]
    for result in errors[:5]:
        print(f"tests/reality: case {result['number']} could not be tried: {result['error']}", file=sys.stderr)
    starts = sum(len(result["outcomes"]) for result in results)
    print(
        f"\n{len(results)} of {jobs} cases, {starts} starts in {seconds:.0f} s; {len(finds)} distinct finds", flush=True
    )
    if len(results) < jobs:
        print(f"tests/reality: {jobs - len(results)} cases were not tried", file=sys.stderr)
    if errors or len(results) < jobs:
        return 2
    return 1 if finds else 0


sys.exit(main())
