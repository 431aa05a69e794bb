"""`node verify` on a node with an agent: everything is tried warm and cold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from hook.node.probe.report import Accepted
from hook.node.probe.verify import examine, verify
from unit.node.probe.local import (
    ENGINE,
    KATA,
    POLICY,
    RUNC,
    Env,
    Local,
    Make,
    protect,
)

pytestmark = pytest.mark.root


def test_with_an_agent_everything_is_tried_warm_and_cold(local: Make) -> None:
    starter = local(protect)
    [alone], _ = examine([RUNC], POLICY, starter)
    count = starter.started
    [finding], _ = examine([RUNC], POLICY, starter, agent=True)
    assert (finding.ways, starter.started) == ({"warm": "protected", "cold": "protected"}, 3 * count)
    assert finding.saw == [*alone.saw, "the same in a cold start"]
    assert not starter.marks.cold


def only(cold: bool, starters: list[Local]) -> Callable[[Env], Env]:
    """Protects the starts of one way only."""
    return lambda env: protect(env) if starters[0].marks.cold == cold else env


@pytest.mark.parametrize("cold", [True, False])
def test_one_way_that_does_not_protect_is_enough(local: Make, cold: bool) -> None:
    starters: list[Local] = []
    starters.append(local(only(cold, starters)))
    [finding], _ = examine([RUNC], POLICY, starters[0], agent=True)
    wrong, right = ("warm", "cold") if cold else ("cold", "warm")
    assert finding.result == "not protected"
    assert finding.ways == {wrong: "not protected", right: "protected"}
    assert all(text.startswith("in a cold start: ") != cold for text in finding.saw)


@pytest.mark.parametrize(
    ("reasons", "accepted", "status"),
    [
        (["caller"], [], 1),
        (["mount", "absent"], [], 1),
        (["caller"], ["warm/*"], 0),
        (["mount"], [], 0),  # the container's mounts are missing, and only a cold start mounts
    ],
)
def test_an_agent_that_answers_nothing_is_said(
    local: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reasons: list[str],
    accepted: list[str],
    status: int,
) -> None:
    """It fails, unless the reasons lie in what is started."""
    said = [{"probe": True, "timestamp": "9999", "start": "cold", "cold": reason} for reason in reasons]
    monkeypatch.setattr("hook.node.probe.verify.last_starts", lambda: said)
    [finding], _ = examine([RUNC], POLICY, local(protect), agent=True)
    assert finding.ways == {"warm": "not tried", "cold": "protected"}
    assert finding.saw[-1].startswith(f"no start was warm: {', '.join(sorted(reasons))}; ")
    assert verify(ENGINE, [RUNC], POLICY, local(protect), "json", Accepted(accepted), agent=True) == status
    report = json.loads(capsys.readouterr().out)
    assert report["protected"] is (status == 0)
    assert [part["part"] for part in report["notTried"]] == ([] if reasons == ["mount"] else ["warm/runc"])


def test_what_calls_no_runtime_of_this_node_has_no_ways(local: Make) -> None:
    [finding], _ = examine([KATA], POLICY, local(protect), agent=True)
    assert finding.ways == {}
