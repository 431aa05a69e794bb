"""The agent's memory stays where it is: a short run of tests/bench/resident.py, which makes 100,000 requests."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from bench.resident import measure
from harness.bundle import Bundle
from harness.container import Running
from harness.node import WANTED, Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import need

from e2e.agent.support import FRONT, Agent

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    marks.promise(
        "The agent with the NRI plugin stays below 35 MB, and loads no module after its first request", about="Agent"
    ),
]


def test_memory_is_flat(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need(FRONT.exists(), "front, which packaging/build.sh builds where musl-gcc is")
    assert measure(str(REASSERT), directory, 2000) <= 35
    said = capsys.readouterr().out
    assert "cold: 0" in said
    grown = float(said.rpartition("requests, ")[2].split()[0])
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
