"""The agents of tests/innocents as pods of a real containerd 2.1, by its CRI, its NRI and its base_runtime_spec.

tests/e2e/test_innocents.py has every row with an NRI runtime of the tests. This has what only the engine itself does:
it resolves hostPaths, sorts mounts, makes env and devices, and applies the plugin's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.paths import RUNTIMES
from harness.tools import scratch

from e2e.innocents.engine import InnocentContainerd, start
from e2e.innocents.rows import EXCLUDED, rows
from e2e.innocents.verdict import EXAMPLE, corrected, judge
from e2e.runtimes import EXHAUSTIVE

pytestmark = marks.promise(
    "An agent of [tests/innocents](innocents/README.md) starts under the default policy in Enforce mode and "
    "under the policy at the top of docs/policy.md, corrected, and can read and write what it needs, or that page says "
    "why not"
)

ON_CGROUP_V2 = {"calico-ebpf-bootstrap"}
"""With cgroup v1, runc mounts a tmpfs over the node's hierarchies in a Bidirectional volume of /sys/fs."""

V1 = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
PODS = [name for name, row in rows().items() if row.is_pod and not (V1 and name in ON_CGROUP_V2)]
CHOSEN = [name for number, name in enumerate(PODS) if EXHAUSTIVE or number % 6 == 0 or rows()[name].refused]
"""A sixth of them, and those that are refused."""


@pytest.fixture(scope="module")
def engine() -> Iterator[InnocentContainerd]:
    """The node of all rows."""
    node = InnocentContainerd(scratch())
    try:
        node.start_engine()
        node.build_trust()
        node.set_policy(EXAMPLE)
        node.start_agent()
        node.start_plugin()
        yield node
    finally:
        node.close()


@pytest.mark.parametrize("name", CHOSEN)
def test_starts_under_a_real_containerd(engine: InnocentContainerd, name: str) -> None:
    row, namespace = rows()[name], rows()[name].where()[-1]
    tried = start(engine, row, namespace, [*RUNTIMES][CHOSEN.index(name) % 2])
    judge(row, tried, namespace)
    if tried.started and namespace != EXCLUDED:
        corrected(engine, row, tried)
