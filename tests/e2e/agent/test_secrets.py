"""The agent says as little of a container's own values as a cold start, and gives them the same hash."""

from __future__ import annotations

from pathlib import Path

import marks
from harness.bundle import Bundle
from harness.container import Running
from harness.paths import RUNTIMES

from e2e.agent.support import Agent
from e2e.test_secrets import SECRET, plant, told, write

pytestmark = marks.promise(
    "A value that is not the policy's is in no event, journal, report, metric, audit, bundle or refusal; in "
    "its place are its length and a hash with the node's key"
)


@marks.hole(
    "The event log, and with `eventLog.journal` the journal, had the value of each env name that must be "
    "absent or was overridden: other people's secrets"
)
def test_the_agent_and_a_cold_start_have_the_same_hash(agent: Agent, directory: Path) -> None:
    write(agent.node)
    found = []
    for number, file in enumerate((agent.only_warm(agent.dispatcher(RUNTIMES["runc"])), None)):
        bundle = Bundle(directory / str(number) / "k8s.io" / "bundle")
        plant(bundle, "A_TOKEN")
        with Running(file or agent.node.dispatcher(RUNTIMES["runc"]), bundle):
            pass
        event = agent.node.logged()[-1]
        [before] = [edit["before"] for edit in event["edits"] if edit["name"] == "A_TOKEN"]
        found.append((event["start"], before))
    assert [start for start, _ in found] == ["warm", "cold"]
    assert found[0][1] == found[1][1]
    assert "hash" in found[0][1][0]
    assert SECRET not in told(agent.node) + agent.said()
