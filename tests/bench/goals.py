"""One table of what a start costs, warm and cold, beside peers: for docs/performance.md."""

from __future__ import annotations

from bench.node import REASSERT
from bench.results import Results, Row
from bench.together import CREATIONS, WRAPPERS

WARM, COLD, PEER, NOISE = "reassert, warm", "reassert", "nvidia", "runc again"
FRONT = REASSERT.parent / "front"

RATIOS = (
    ("container life, 30 kB, env, mount and the look", "life, 30 kB", 0.35),
    ("`create` before a runtime that does nothing", "wrapper alone, 30 kB", 0.2),
    ("`create`, 30 kB", "create, 30 kB", None),
    ("`exec`, 30 kB", "exec, 30 kB", 0.3),
    ("verifying hook", "prestart hook, 30 kB", 0.5),
    ("64 creations at once", CREATIONS, 0.5),
    ("64 creations at once before a runtime that does nothing", WRAPPERS, None),
)
"""What is measured, its case, and the most that it may add, as a part of what NVIDIA's adds."""

ADDED = (
    ("`start`", "start, 30 kB"),
    ("`kill`", "kill, 30 kB"),
    ("`delete`", "delete, 30 kB"),
    ("`state`", "state, 30 kB"),
)
"""Verbs that are passed on, with at most MOST milliseconds more."""

MOST = 0.5
PROBING, PROBES, SHARE = "25 execs a second", 25, 5.0
FRONT_MB, FRONT_KB, AGENT_MB = 1.0, 40, 35

HOOKS = {WARM: "reassert, verifies, warm", COLD: "reassert, verifies"}
"""What the contenders are called in the case of the hook."""


def goals(results: Results, memory: tuple[int, float] | None) -> str:
    """The rows that were measured, in Markdown. `memory`: requests, and MB of the agent after them."""
    heads = [
        "added to runc, ms, median [95 %]",
        "warm",
        "cold",
        "NVIDIA's",
        "runc again",
        "ratio, wall (CPU)",
        "goal",
        "",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for label, case, most in RATIOS:
        warm = _row(results, case, WARM)
        if warm:
            wall, cpu = results.ratio(warm, PEER)
            ratio = "" if wall is None else f"{wall:.2f}x" + ("" if cpu is None else f" ({cpu:.2f}x)")
            goal, verdict = ("", "") if most is None else (f"{most}x", _verdict(wall, most))
            lines.append(_line(results, label, case, ratio, goal, verdict))
    for label, case in ADDED:
        warm = _row(results, case, WARM)
        if warm and warm.added:
            lines.append(_line(results, label, case, "", f"+{MOST} ms", _verdict(warm.added.median, MOST)))
    share = _row(results, PROBING, WARM)
    if share and share.added_cpu:
        cells = [_share(_row(results, PROBING, name)) for name in (WARM, COLD, PEER, NOISE)]
        verdict = _verdict(share.added_cpu.median * PROBES / 10, SHARE)
        lines.append(f"| {PROBES} `exec` a second: CPU of a core | {' | '.join(cells)} | | {SHARE:.0f} % | {verdict} |")
    front = _row(results, "wrapper alone, 30 kB", WARM)
    if front and front.peak_mb:
        cells = [_peak(_row(results, "wrapper alone, 30 kB", name)) for name in (WARM, COLD, PEER, NOISE)]
        verdict = _verdict(front.peak_mb, FRONT_MB + 0.05)
        lines.append(f"| memory of the wrapper | {' | '.join(cells)} | | {FRONT_MB:.0f} MB | {verdict} |")
    if FRONT.exists():
        size = FRONT.stat().st_size / 1000
        lines.append(f"| size of front | {size:.0f} kB | | | | | {FRONT_KB} kB | {_verdict(size, FRONT_KB)} |")
    if memory:
        label = f"agent with NRI after {memory[0]} requests"
        lines.append(f"| {label} | {memory[1]:.1f} MB | | | | | {AGENT_MB} MB | {_verdict(memory[1], AGENT_MB)} |")
    return "\n".join(lines)


def _row(results: Results, case: str, contender: str) -> Row | None:
    name = HOOKS.get(contender, contender) if case.startswith("prestart") else contender
    return results.find(case, name)


def _line(results: Results, label: str, case: str, ratio: str, goal: str, verdict: str) -> str:
    rows = [_row(results, case, name) for name in (WARM, COLD, PEER, NOISE)]
    cells = [str(row.added) if row and row.added else "" for row in rows]
    return f"| {label} | {' | '.join(cells)} | {ratio} | {goal} | {verdict} |"


def _share(row: Row | None) -> str:
    return f"{row.added_cpu.median * PROBES / 10:.1f} %" if row and row.added_cpu else ""


def _peak(row: Row | None) -> str:
    return f"{row.peak_mb:.1f} MB" if row and row.peak_mb else ""


def _verdict(value: float | None, most: float) -> str:
    if value is None:
        return "no peer"
    return "met" if value <= most else "**missed**"
