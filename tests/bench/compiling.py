"""How long compiling a policy takes: the whole process, as the first container start after an edit runs it.

    python tests/bench/compiling.py                               dist/reassert, 10 to 1,000 rules
    python tests/bench/compiling.py --before OLD/reassert         beside another frozen program, runs interleaved
    python tests/bench/compiling.py --rules 1000 --runs 5

Processor time of the child (getrusage), the median of the runs; the clock's time beside it. As root: a policy below a
directory of another user is not used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

KINDS = ("namespaces", "images", "labels", "names")
"""What tells the rules apart: a condition; or, without one, the names that they reserve."""

HEAD = "apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {name: big}\nspec:\n  mode: Enforce\n  rules:\n"


def big(count: int, kind: str = "namespaces") -> str:
    """A policy of so many rules, as a generator of a large cluster's policy would write it."""
    matches = {
        "namespaces": 'namespaces: [team-{n}, "team-{n}-*"]',
        "images": 'images: ["registry.example/team-{n}/*"]',
        "labels": 'podSelector: {{matchLabels: {{team: "t{n}"}}}}\n      ifUnknown: Skip',
        "names": "containerTypes: [init, container, ephemeral]",
    }
    own = "_{n}" if kind == "names" else ""
    rule = f"""\
  - name: team-{{n}}
    match:
      {matches[kind]}
    env:
    - {{{{name: REQUESTS_CA_BUNDLE{own}, value: /etc/ssl/certs/{{n}}.crt}}}}
    - name: PROXY_{{n}}
      value: http://proxy-{{n}}.example:3128
    mounts:
    - {{{{hostPath: /etc/reassert/{{n}}, mountPath: /etc/ssl/company{own}, readOnly: true}}}}
    onConflict: Override
"""
    return HEAD + "".join(rule.format(n=number) for number in range(count))


def measured(program: str, path: Path, directory: Path) -> tuple[float, float]:
    """Seconds of processor time and of the clock."""
    begin = time.monotonic()
    child = subprocess.Popen(
        [program, "policy", "compile", "--policy", str(path), "--store", str(directory / "s")],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{program}: exit status {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - begin


def main() -> None:
    """Print a line for each number of rules."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--program", default="dist/reassert/reassert")
    parser.add_argument("--before", metavar="PROGRAM", help="another frozen program to compare with")
    parser.add_argument("--rules", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    programs = [options.program, *([options.before] if options.before else [])]
    with tempfile.TemporaryDirectory(dir="/run") as scratch:
        for count in options.rules:
            path = Path(scratch, "policy.yaml")
            path.write_text(big(count, options.kind))
            times: dict[str, list[tuple[float, float]]] = {program: [] for program in programs}
            for _ in range(options.runs):
                for program in programs:
                    times[program].append(measured(program, path, Path(scratch)))
            medians = {
                p: [statistics.median(column) for column in zip(*found, strict=True)] for p, found in times.items()
            }
            text = "   ".join(f"{cpu:7.3f} s of processor, {clock:7.3f} s" for cpu, clock in medians.values())
            ratio = f"   {medians[programs[1]][0] / medians[programs[0]][0]:.1f} times" if options.before else ""
            print(f"{count:6} rules: {text}{ratio}", flush=True)


if __name__ == "__main__":
    main()
