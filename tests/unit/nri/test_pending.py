"""When the event about a container is written: after the answer, once, and without holding up the next container."""

from __future__ import annotations

import json
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Unacceptable
from hook.core.decide import Case
from hook.nri import ttrpc
from hook.nri.report import Report
from hook.nri.request import CREATE, LIMIT, MOST, PendingEvents, Reply, Request
from hook.ops.metrics.prometheus import Metrics
from hook.resident.metrics import NoMetrics
from unit.nri.support import KNOWN, RESPONSE, create_request, events_of, running, wait_until
from unit.support import WithPolicy, document, policy

pytestmark = marks.promise(
    "A container's event is written once, after the answer, and no container waits for it", about="NRI"
)

GPU = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}]}
POLICY = document(GPU)


def test_events_of_containers_that_are_created_at_once_come_after_the_answers(root_dir: Path) -> None:
    """Each once, in their order; those that would be too many before the next request."""
    count = 2 * MOST + 3
    with running(root_dir, POLICY, quiet=60_000) as plugin:
        for number in range(count):
            assert not plugin.peer.call("CreateContainer", create_request(["GPU=all"], id=f"c{number}")).status.code
        wait_until(lambda: len(events_of(plugin)) >= 2 * MOST)
        wait_until(lambda: plugin.decider.pending.count() == 3)
        assert len(events_of(plugin)) == 2 * MOST
        plugin.peer.call("StateChange", ttrpc.get("Empty")())  # before the answer to any other call
        assert [event["id"] for event in events_of(plugin)] == [f"c{number}" for number in range(count)]
        took = sum(event["durationMs"] for event in events_of(plugin)) / 1000  # until the answer, not until the event
        assert took == pytest.approx(plugin.metric("reassert_decision_seconds_sum"))


def test_event_is_written_when_the_connection_ends_at_once(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        plugin.peer.call("CreateContainer", create_request(["GPU=all"]))
        plugin.peer.socket.close()
        plugin.thread.join(20)
        wait_until(lambda: [event["id"] for event in events_of(plugin)] == ["c0"])


@marks.hole(
    "An NRI event said that edits were asked for where the answer was not sent",
    since="0.3.0",
    fixed="0.3.0",
    severity="low",
)
@pytest.mark.parametrize("version", ["2.1.9", KNOWN])
def test_no_event_says_what_a_runtime_was_asked_that_got_no_answer(root_dir: Path, version: str) -> None:
    with running(root_dir, POLICY, version=version) as plugin:
        plugin.decider.slow = "app"
        plugin.peer.send("CreateContainer", create_request(["GPU=all"]))
        plugin.peer.socket.close()
        plugin.decider.go.set()
        plugin.thread.join(20)
        assert events_of(plugin) == []


def test_event_waits_for_the_question_and_says_what_was_looked_at(root_dir: Path) -> None:
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        create = create_request(["A=1", "GPU=all"])
        adjust = RESPONSE.FromString(plugin.create(["A=1", "GPU=all"]).payload).adjust
        assert events_of(plugin) == []
        assert not plugin.validate(create, adjust=adjust).reject
        [event] = events_of(plugin)
        assert (event["event"], event["applied"], event["asked"]) == ("container.edited", False, True)
        assert event["verified"] == "adjustment"
        assert plugin.metric("reassert_containers_total", outcome="adjusted") == 1
        plugin.create(["GPU=void"])  # needs nothing, and has no event
        assert not plugin.validate(create_request(["GPU=void"]), adjust={}).reject
        assert len(events_of(plugin)) == 1
        assert plugin.metric("reassert_containers_total", outcome="unchanged") == 1


def test_event_is_written_without_the_question_too(root_dir: Path) -> None:
    """Another plugin may have refused the container: at the next one, after a while, or when the connection ends."""
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        plugin.create(["GPU=all"])
        plugin.create(["GPU=all"], id="c1")
        assert [event["id"] for event in events_of(plugin)] == ["c0"]
        plugin.peer.socket.close()
        plugin.thread.join(20)
        assert [(event["id"], event["verified"]) for event in events_of(plugin)] == [("c0", ""), ("c1", "")]
    with running(root_dir, POLICY, version=KNOWN, unheld=0.0) as plugin:
        plugin.create(["GPU=all"], id="c2")
        wait_until(lambda: [event["id"] for event in events_of(plugin)] == ["c0", "c1", "c2"])


def test_log_that_hangs_keeps_one_thread(root_dir: Path) -> None:
    """However many containers are created meanwhile; their events are written once it goes on."""
    with running(root_dir, POLICY) as plugin:
        plugin.report.slow = True
        for number in range(100):
            response = plugin.peer.call("CreateContainer", create_request(["GPU=all"], id=f"c{number}"))
            assert RESPONSE.FromString(response.payload).adjust.env[0].value == "void", (
                "not a refusal for a late answer"
            )
        assert len(plugin.plugin.stuck) == 1
        assert events_of(plugin) == []
        plugin.report.go.set()
        wait_until(lambda: [event["id"] for event in events_of(plugin)] == [f"c{number}" for number in range(100)])


def answered(container_id: str) -> Request:
    """A request that a container was refused for."""
    request = Request(CREATE)
    request.container = container_id
    case = Case(WithPolicy(policy(GPU), "nri"), container_id)
    request.claim(Reply(case).settle(case.failed(Unacceptable("no"))))
    return request


def test_event_that_cannot_be_written_is_counted_and_the_next_one_is_written(root_dir: Path) -> None:
    metrics = Metrics()
    report = Report(f"{root_dir}/log", metrics)
    waiting = PendingEvents(report)
    broken = answered("c0")
    assert broken.reply and broken.reply.verdict
    broken.reply.verdict.event = {"event": object()}
    for request in (broken, answered("c1")):
        waiting.add(request)
    waiting.write()
    report.close()
    assert [json.loads(line)["id"] for line in Path(report.events).read_text().splitlines()] == ["c1"]
    assert metrics.registry.get_sample_value("reassert_errors_total", {"kind": "log"}) == 1


def test_events_that_wait_have_a_limit(root_dir: Path) -> None:
    report = Report(f"{root_dir}/log", NoMetrics())
    waiting = PendingEvents(report)
    for number in range(LIMIT + 1):
        waiting.add(answered(f"c{number}"))
    waiting.write()
    report.close()
    told = [json.loads(line)["id"] for line in Path(report.events).read_text().splitlines()]
    assert told == [f"c{number}" for number in range(LIMIT)]


def test_one_thread_answers() -> None:
    request = Request(CREATE)
    assert [request.claim(), request.claim()] == [True, False]
