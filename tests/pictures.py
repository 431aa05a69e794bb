"""Draws the pictures of docs/ that come from what the repository knows, without a node.

    build/venv-test/bin/python tests/pictures.py            writes them
    build/venv-test/bin/python tests/pictures.py --check    fails if one is not what would be drawn

`docs/rollout.svg` is of the chart's `node.maxUnavailable`, `docs/boundaries.svg` of the table in docs/security.md,
`docs/project/start-cost.svg` of the results in docs/project/performance.md. A run of tests/bench draws its own.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from svg import document, words

ROOT = Path(__file__).resolve().parents[1]

NODE_SECONDS = 23
"""What the change of one node takes, from the end of the old pod to the ready new one (docs/kubernetes.md)."""
PODS_A_SECOND = 10
"""How many pods the DaemonSet controller makes in a second at most, as docs/kubernetes.md counts."""
NODES = 500


@dataclass(frozen=True)
class RollOut:
    """A roll-out over NODES nodes. `setting`: as the chart's `node.maxUnavailable` has it."""

    setting: str

    @property
    def at_once(self) -> int:
        """How many nodes change at the same time: Kubernetes rounds a percentage up, and takes at least one."""
        if self.setting.endswith("%"):
            return max(1, math.ceil(NODES * int(self.setting[:-1]) / 100))
        return int(self.setting)

    @property
    def seconds(self) -> float:
        """When the last node is done."""
        return self.done(NODES)

    def done(self, nodes: int) -> float:
        """When this many nodes are done, in seconds."""
        return max(math.ceil(nodes / self.at_once) * NODE_SECONDS, nodes / PODS_A_SECOND)

    def told(self) -> str:
        """How long it takes."""
        minutes = self.seconds / 60
        return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def default_setting() -> str:
    """`node.maxUnavailable` of the chart."""
    values = yaml.safe_load((ROOT / "packaging/kubernetes/chart/values.yaml").read_text())
    return str(values["node"]["maxUnavailable"])


def rollout() -> str:
    """A roll-out by the chart's default, beside a slower and a faster one."""
    default, others = RollOut(default_setting()), [RollOut("1"), RollOut("25%")]
    left, top, wide, high = 70.0, 76.0, 600.0, 260.0
    most = math.ceil(default.seconds / 60)

    def x(seconds: float) -> float:
        return left + wide * min(seconds / 60 / most, 1)

    def y(nodes: float) -> float:
        return top + high * (1 - nodes / NODES)

    def steps(each: RollOut) -> str:
        path, nodes = f"M{x(0):.1f} {y(0):.1f}", 0
        while nodes < NODES and each.done(nodes + 1) / 60 <= most:
            nodes = min(nodes + each.at_once, NODES)
            path += f"H{x(each.done(nodes)):.1f}V{y(nodes):.1f}"
        return path + f"H{x(most * 60):.1f}"

    body = [words(24, 34, f"Roll-out over {NODES} nodes, by node.maxUnavailable", "head")]
    body.append(words(24, 56, f"Nodes that are wired and verified; computed from {NODE_SECONDS} s for a node", "soft"))
    for nodes in range(0, NODES + 1, 100):
        body.append(f'<path class="line" d="M{left:g} {y(nodes):g}H{left + wide:g}"/>')
        body.append(words(left - 10, y(nodes) + 5, str(nodes), "soft", "end"))
    below = top + high + 22
    body += [words(x(60 * at), below, f"{at} min" if at else "0", "soft", "middle") for at in range(most + 1)]
    ends = ((others[1], "b"), (default, "a"), (others[0], "c"))
    body += [f'<path class="{name}" d="{steps(each)}"/>' for each, name in ends]
    at = left + wide + 12
    body.append(words(at, y(NODES) - 4, f"{others[1].setting}: {others[1].told()}", "b"))
    body.append(words(at, y(NODES) + 18, f"{default.setting}: {default.told()}", "a"))
    body.append(words(at, y(NODES) + 36, "the default", "soft"))
    body.append(words(at, y(most * 60 / NODE_SECONDS) + 2, f"{others[0].setting}: {others[0].told()}", "c"))
    stopped = f"A policy that stops at a failure has reached the first {default.at_once} nodes."
    body.append(words(24, top + high + 56, stopped, "soft"))
    told = ", ".join(f"{each.told()} with {each.setting}" for each in (default, *others))
    return document(820, 410, f"Roll-out over {NODES} nodes", f"It takes {told}. {stopped}", body)


def boundaries_in(page: str) -> list[str]:
    """The trust boundaries of the table in docs/security.md: number, name, and what crosses it."""
    return [f"{name}: {what}" for name, what in re.findall(r"^\| (\d [^|]+?) \| ([^|]+?) \|", page, re.MULTILINE)]


_BOXES = {
    "pods": (24, 84, 216, 74, "theirs", "Pod specs, image labels", "env, mounts, annotations"),
    "images": (24, 352, 216, 74, "theirs", "Images and volumes", "files, links"),
    "engine": (306, 84, 168, 74, "box", "Container engine, NRI", "root"),
    "front": (602, 84, 168, 74, "box", "Dispatcher, front", "root"),
    "agent": (602, 218, 168, 74, "box", "Agent", "root; or a cold start"),
    "container": (602, 352, 168, 74, "theirs", "Container", "mount namespace"),
    "policy": (306, 196, 168, 52, "box", "policy.yaml, store", "root's files"),
    "kubelet": (306, 262, 168, 52, "box", "kubelet, engine's CRI", "devices, labels"),
}
"""Where a box is and how large, its class, and its two lines."""

_ARROWS = (
    ("M240 121H300", 0, 0, 0),
    ("M474 121H596", 1, 535, 121),
    ("M686 158V212", 2, 686, 185),
    ("M474 222H535L535 240H596", 3, 504, 222),
    ("M474 288H535L535 270H596", 4, 504, 288),
    ("M686 292V346", 5, 686, 319),
    ("M240 389H596", 0, 0, 0),
)
"""The line of an arrow, the number of the boundary that it crosses and where that is; 0 for none."""


def boundaries() -> str:
    """What crosses which trust boundary. The names are those of docs/security.md."""
    listed = boundaries_in((ROOT / "docs/security.md").read_text())
    marker = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    body = [f'<defs>{marker}<path class="d" d="M0 0L8 4L0 8z"/></marker></defs>']
    body.append(words(24, 34, "Trust boundaries", "head"))
    body.append(words(24, 56, "Orange: pods, images and users write it", "soft"))
    for left, top, wide, high, name, first, second in _BOXES.values():
        body.append(f'<rect class="{name}" x="{left}" y="{top}" width="{wide}" height="{high}" rx="6"/>')
        middle, line = left + wide / 2, top + high / 2
        body.append(words(middle, line - 4, first, "", "middle"))
        body.append(words(middle, line + 15, second, "soft", "middle"))
    for path, number, x, y in _ARROWS:
        body.append(f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>')
        if number:
            body.append(f'<circle class="number" cx="{x}" cy="{y}" r="12"/>')
            body.append(words(x, y + 5, str(number), "number", "middle"))
    body += [words(24, 466 + 22 * at, text) for at, text in enumerate(listed)]
    high = 466 + 22 * len(listed)
    return document(
        794, high, "Trust boundaries of reassert", f"What crosses which boundary: {'; '.join(listed)}.", body
    )


def costs_in(page: str) -> dict[str, list[float]]:
    """What a start costs warm, cold and with NVIDIA's runtime, by case: rows of docs/project/performance.md."""
    rows = re.findall(r"^\| ([^|]+?) \| \+([\d.]+) \| \+([\d.]+) \| \+([\d.]+) \|", page, re.MULTILINE)
    return {
        case.replace("`", ""): [float(value) for value in values] for case, *values in rows if "at once" not in case
    }


def start_cost() -> str:
    """The recorded medians of what is added to plain runc."""
    page = (ROOT / "docs/project/performance.md").read_text()
    [date] = re.findall(r"recorded on (\d{4}-\d\d-\d\d)", page)
    costs = costs_in(page)
    names = (("warm", "a"), ("cold", "b"), ("NVIDIA's runtime", "c"))
    most, left, top, wide, each = max(map(max, costs.values())), 24.0, 106.0, 640.0, 92.0
    body = [words(24, 34, "What a container start costs", "head")]
    body.append(
        words(24, 56, f"Milliseconds added to plain runc, median; recorded on {date}, see performance.md", "soft")
    )
    for at, (name, colour) in enumerate(names):
        body.append(f'<rect class="{colour}" x="{24 + 96 * at}" y="70" width="12" height="12"/>')
        body.append(words(42 + 96 * at, 81, name, "soft"))
    for at, (case, values) in enumerate(costs.items()):
        y = top + each * at
        body.append(words(left, y + 14, case))
        for line, (value, (_, colour)) in enumerate(zip(values, names, strict=True)):
            length, beside = max(wide * value / most, 1), y + 22 + 19 * line
            body.append(f'<rect class="{colour}" x="{left:g}" y="{beside:g}" width="{length:.1f}" height="15"/>')
            body.append(words(left + length + 8, beside + 13, f"+{value:g}", "soft"))
    told = "; ".join(
        f"{case}: " + ", ".join(f"{name} +{value:g} ms" for value, (name, _) in zip(values, names, strict=True))
        for case, values in costs.items()
    )
    return document(740, top + each * len(costs) + 8, "What a container start costs", f"{told}.", body)


PICTURES = {
    "docs/project/start-cost.svg": start_cost,
    "docs/rollout.svg": rollout,
    "docs/boundaries.svg": boundaries,
}
"""By their path in the repository."""


def main() -> int:
    """Write them, or compare; returns 1 if one differs."""
    made = {ROOT / path: draw() for path, draw in PICTURES.items()}
    if "--check" not in sys.argv:
        for path, text in made.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what tests/pictures.py draws; run it")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
