"""Plot the CPU time of a create against the size of config.json and of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.cases import AGAIN, BASE, RULES, SIZES
from bench.results import Results, Row


def plot(results: Results, path: Path) -> bool:
    """Write a PNG; False without matplotlib or without the two groups that it shows."""
    sized = {label: [row for row in results.rows if row.case == f"create, config.json of {label}"] for label in SIZES}
    ruled = [results.find("wrapper alone, policy of", f"{count} rules") for count in RULES[1:]]
    if not any(sized.values()) and not any(ruled):
        return False
    try:
        import matplotlib  # type: ignore[import-not-found]  # test-only, and only for this
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    names = dict.fromkeys(row.contender for rows in sized.values() for row in rows if row.contender != BASE)
    for name in names:
        rows = {SIZES[label]: row for label, found in sized.items() for row in found if row.contender == name}
        _line(left, list(rows), list(rows.values()), name, "--" if name == AGAIN else "-")
    left.set(xscale="log", xlabel="bytes of config.json", ylabel="CPU time added to runc create, ms")
    left.set_yscale("symlog", linthresh=20)
    left.legend()
    counts = [count for count, row in zip(RULES[1:], ruled, strict=True) if row]
    _line(right, counts, [row for row in ruled if row], "rules of other namespaces", "-")
    patterns = results.find("wrapper alone, policy of", "1000 patterns")
    if patterns and patterns.added:
        _line(right, [1000], [patterns], "patterns to be tried", "-")
    right.set(xscale="log", xlabel="rules in the policy", ylabel="CPU time added to one rule's, ms")
    right.legend()
    for axes in (left, right):
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.grid(alpha=0.3)
    figure.suptitle("What reassert adds: median of paired differences, 95 % interval")
    figure.savefig(path, dpi=110)
    return True


def _line(axes: object, at: Sequence[int], rows: Sequence[Row], name: str, style: str) -> None:
    points = [(x, row.added_cpu) for x, row in zip(at, rows, strict=True) if row.added_cpu]
    middle = [added.median for _, added in points]
    spread = [
        [added.median - added.low for _, added in points],
        [added.high - added.median for _, added in points],
    ]
    axes.errorbar(  # type: ignore[attr-defined]  # matplotlib is not installed where types are checked
        [x for x, _ in points], middle, yerr=spread, label=name, marker="o", capsize=3, linestyle=style
    )
