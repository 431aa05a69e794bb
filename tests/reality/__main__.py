"""The command behind run.sh: cases for the workers, finds and a table for whoever called."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness.paths import REASSERT

from reality.node import runtimes
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
        jobs: list[Job] = []
        for file in options.case:
            saved = json.loads((here / file).read_text())
            names = chosen if options.runtime or "runtime" not in saved else [saved["runtime"]]
            through = adapters if options.adapter or "adapter" not in saved else (saved["adapter"],)
            jobs += [
                Job(0, len(jobs) + at, name, through, saved.get("case", saved), shrinking)
                for at, name in enumerate(names)
            ]
    else:
        resumed = _header(here / options.resume) if options.resume else {}
        seed = options.seed if options.seed is not None else resumed.get("seed", secrets.randbelow(10**9))
        print(f"tests/reality: seed {seed}, {options.runs} cases, {', '.join(chosen)}, {REASSERT}", flush=True)
        numbers = range(options.start, options.start + options.runs)
        jobs = [
            Job(
                seed,
                number,
                chosen[(number + number // len(chosen)) % len(chosen)],
                adapters,
                None,
                shrinking,
                False,
                options.attack,
            )
            for number in numbers
        ]
    if options.show:
        from reality.generate import case as generated

        for job in jobs:
            print(json.dumps(job.case or generated(job.seed, job.number, attack=job.attack), indent=1))
        return 0
    began = time.monotonic()
    header = _made(jobs[0].seed, adapters, chosen, options.agent) | (
        {"attack": options.attack} if options.attack else {}
    )
    record = Record(here / options.resume if options.resume else None, header)
    left = [job for job in jobs if job.number not in record.done]
    _share(left, min(options.workers, len(left)), began + options.hurry, began + options.seconds, options.agent, record)
    results = [one for one in record.results() if any(job.number == one["number"] for job in jobs)]
    status = _tell(results, here / options.finds if options.finds else None, len(jobs), time.monotonic() - began)
    if not options.case:
        _sum_up(header, results)
    return status


class Record:
    """The results of a run, a line of JSON each. With a path they stay there, and a later run goes on after them.

    The first line is the header: seed, program, runtimes. Raises SystemExit where the file has another one.
    """

    def __init__(self, path: Path | None, header: dict[str, Any]) -> None:
        # Not a pipe: it would hold up each worker until those before it are done.
        self._file = path.open("a+") if path else tempfile.TemporaryFile("a+")  # noqa: SIM115  # open until the end
        self._file.seek(0)
        first = self._file.readline()
        if not first:
            self.write(header)
        elif json.loads(first) != header:
            print(f"tests/reality: {path} is of another seed, program, runtimes or adapters: {first}", file=sys.stderr)
            raise SystemExit(2)
        self.done = {result["number"] for result in self.results() if not result["error"]}

    def write(self, line: dict[str, Any]) -> None:
        """Append a line, in one piece; several processes do."""
        os.write(self._file.fileno(), json.dumps(line).encode() + b"\n")

    def results(self) -> list[dict[str, Any]]:
        """The last result of each case, by number. A line that a kill has cut is none."""
        self._file.seek(0)
        found: dict[int, dict[str, Any]] = {}
        for line in self._file.read().splitlines()[1:]:
            with suppress(ValueError):
                result = json.loads(line)
                found[int(result["number"])] = result
        return [result for _, result in sorted(found.items())]


def _header(path: Path) -> dict[str, Any]:
    """The first line of a record, {} where there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[str, Any] = json.loads(lines[0]) if lines else {}
    return found


def _made(seed: int, adapters: tuple[str, ...], names: list[str], agent: bool) -> dict[str, Any]:
    """What a run is of."""
    digest = sha256()
    for path in sorted([REASSERT, *(REASSERT.parent / "lib").rglob("*.pyc")]):
        digest.update(path.read_bytes())
    version = subprocess.run([REASSERT, "--version"], text=True, capture_output=True, check=False).stdout.strip()
    program = f"{version} (sha256 {digest.hexdigest()[:16]})"
    return {"seed": seed, "program": program, "runtimes": names, "adapters": list(adapters), "agent": agent}


def _sum_up(header: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """The numbers for docs/security.md."""
    outcomes = Counter(outcome for result in results for outcome in result["outcomes"].values())
    finds = len({(find["kind"], find["shape"]) for result in results for find in result["finds"]})
    seconds = sum(result["seconds"] for result in results)
    numbers = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    through = ", ".join(header["adapters"]) + (" with the agent" if header["agent"] else "")
    print(f"{header['program']}, seed {header['seed']}: {len(results):,} cases on {', '.join(header['runtimes'])}")
    print(f"through {through}: {outcomes.total():,} starts ({numbers}), {finds} distinct finds;")
    print(f"{seconds / max(1, len(results)):.2f} s for a case and worker", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/reality/run.sh", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="so many cases (default: 200)")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed makes the same cases (default: random, printed)"
    )
    parser.add_argument("--start", type=int, default=0, metavar="N", help="number of the first case of the seed")
    parser.add_argument(
        "--attack", default="", metavar="NAME", help="only cases with this attack (ways.py, attacks.py)"
    )
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
    parser.add_argument(
        "--resume", metavar="FILE", help="keep all results there; the same command again goes on after them"
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


def _share(jobs: list[Job], workers: int, hurry: float, until: float, agent: bool, record: Record) -> None:
    """All jobs, done by forked workers, each taking every so manieth job."""
    running = []
    for number in range(workers):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(f"w{number}", _in_time(jobs[number::workers], hurry, until), record.write, agent)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        running.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in running]
    if any(statuses):
        print("tests/reality: a worker ended before its cases were done", file=sys.stderr)
        raise SystemExit(2)


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
