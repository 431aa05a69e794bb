"""The agent's memory stays where it is: a short run of tests/bench/resident.py, which makes 100,000 requests."""

from __future__ import annotations

import re
import sys

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import WANTED, Node
from harness.paths import REASSERT, RUNTIMES, TOP
from harness.tools import need, run

from e2e.agent.support import FRONT, Agent

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    marks.promise(
        "The agent with the NRI plugin stays below 35 MB, and loads no module after its first request", about="Agent"
    ),
]


def test_memory_is_flat() -> None:
    """In a process of its own: the agent prints its refusals on its standard error."""
    need(FRONT.exists(), "front, which packaging/build.sh builds where musl-gcc is")
    options = ("--requests", "2000", "--reassert", str(REASSERT))
    said = run(sys.executable, str(TOP / "tests/bench/resident.py"), *options).stdout
    assert "cold: 0" in said
    now, grown = (
        float(found) for found in re.findall(r"NRI: ([\d.]+) MB after 2000 requests, ([+-][\d.]+) MB", said)[0]
    )
    assert now <= 35, said
    assert grown < 1.5, said


@marks.hole(
    "Some 140 containers with env of 1.8 MiB filled the agent's memory cgroup with their config.json, and all"
    " starts became slow",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_large_files_are_written_by_a_cold_start(node: Node, bundle: Bundle) -> None:
    """A tmpfs such as /run counts for the memory of who writes there, until the bundle is removed."""
    node.compile()
    agent = Agent(node)
    agent.start()
    try:
        file = agent.dispatcher(RUNTIMES["runc"])
        bundle.pod()
        for size, reason in ((200 << 10, ""), (300 << 10, "size")):
            entries = [f"V{number}={'x' * 100_000}" for number in range(size // 100_000)]
            bundle.spec["process"]["env"] = ["PATH=/bin", *entries, f"LAST={'x' * (size % 100_000)}"]
            bundle.save()
            with Running(file, bundle) as running:
                assert WANTED in running.environ()
            assert node.logged()[-1].get("cold", "") == reason
    finally:
        agent.stop()
