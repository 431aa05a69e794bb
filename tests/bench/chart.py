"""A picture of what a container start costs, from the result file of a run: p50 and p99 of each contender.

    PYTHONPATH=.:tests python -m bench.chart build/bench/bench.json FILE.svg

Each run with the group `life` draws it beside its result file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from svg import document, words

CASE = "life, 30 kB"
"""create, start and delete of a container with a config.json of that size."""

SHOWN = {
    "runc": ("runc", "d"),
    "reassert, warm": ("reassert, warm", "a"),
    "reassert": ("reassert, cold", "b"),
    "nvidia": ("nvidia-container-runtime", "c"),
}
"""By the name of a contender: its label, and its colour. Another one is not shown."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def drawn(result: dict[str, Any]) -> str:
    """The picture. `result`: as a run keeps it. Raises KeyError if it has not CASE."""
    rows = {row["contender"]: row for row in result["rows"] if row["case"] == CASE}
    if not rows:
        raise KeyError(CASE)
    costs = []
    for name, (label, colour) in SHOWN.items():
        if name in rows:
            walls = [wall for wall, _ in rows[name]["samples"]]
            costs.append((label, colour, percentile(walls, 0.5), percentile(walls, 0.99)))
    machine, rounds = result["machine"], next(iter(rows.values()))["rounds"]
    left, top, wide = 206.0, 82.0, 420.0
    most = max(p99 for _, _, _, p99 in costs)
    body = [words(24, 34, "What a container start costs", "head")]
    what = f"create, start and delete of a container, milliseconds; {rounds} rounds; {machine['runc']}"
    body.append(words(24, 56, what, "soft"))
    for at, (label, colour, p50, p99) in enumerate(costs):
        y = top + 58 * at
        body.append(words(left - 12, y + 24, label, "", "end"))
        for line, (share, name) in enumerate(((p50, "p50"), (p99, "p99"))):
            faint = ' opacity="0.5"' if line else ""
            length = wide * share / most
            body.append(
                f'<rect class="{colour}"{faint} x="{left:g}" y="{y + 20 * line:g}" width="{length:.1f}" height="16"/>'
            )
            body.append(words(left + length + 8, y + 20 * line + 13, f"{share:.0f} ms", "", "start"))
            if at == 0:
                body.append(words(left + length + 64, y + 20 * line + 13, name, "soft"))
    high = top + 58 * len(costs) + 30
    said = f"Measured {machine['date']} on {machine['cpus']} CPUs, Linux {machine['kernel']}"
    said += f"; load {machine['load'][0]:.0f}" if machine["load"][0] >= machine["cpus"] else ""
    body.append(words(24, high - 16, said, "soft"))
    told = "; ".join(f"{label}: p50 {p50:.0f} ms, p99 {p99:.0f} ms" for label, _, p50, p99 in costs)
    return document(760, high, "What a container start costs", f"{what}. {told}. {said}.", body)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(drawn(json.loads(Path(sys.argv[1]).read_text())))
