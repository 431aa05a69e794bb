"""The event log of a node says which policy is in force since when, and what became of an edit, whoever compiles it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import marks

from hook.core.base.logfile import LOST
from hook.core.events import EVENTS
from hook.core.policy.store import SOURCE, load
from unit.ownmachine import Machine
from unit.support import document

pytestmark = [
    marks.promise(
        "One event says which policy took force, in place of which, with any adapter, and another one why an edit"
        " did not",
        about="Events and metrics",
    ),
    marks.promise("Events that the log did not take are counted, and `status` says so"),
]

RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}
TRIED = {"name": "tried", "mode": "Audit", "env": [{"name": "B", "value": "1"}]}


def told() -> list[dict[str, Any]]:
    """The events since the last call."""
    log = Path(EVENTS)
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


def loaded(text: str) -> str:
    """Put a policy in place by rename, as a start of a container finds it; its sha256."""
    Path(SOURCE).parent.mkdir(exist_ok=True)
    Path(f"{SOURCE}.new").write_text(text)
    Path(f"{SOURCE}.new").rename(SOURCE)
    load()
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_change_is_told_once_with_both_hashes_mode_and_rules(machine: Machine) -> None:
    first = loaded(document(RULE))
    [event] = told()
    assert (event["event"], event["level"], event["before"]) == ("policy.loaded", "info", None)
    assert (event["policy"], event["mode"]) == ({"path": SOURCE, "sha256": first}, "Enforce")
    assert event["rules"] == {"enforced": 1, "tried": 0}
    load()
    loaded(document(RULE))
    assert told() == [], "the same content"
    second = loaded(document(RULE, TRIED))
    [event] = told()
    assert (event["before"], event["policy"]["sha256"], event["mode"]) == (first, second, "Mixed")
    assert event["rules"] == {"enforced": 1, "tried": 1}


def test_a_broken_policy_before_the_first_good_one_is_an_error(machine: Machine) -> None:
    loaded("spec: [")
    [held] = told()
    assert (held["event"], held["level"], held["before"]) == ("policy.held", "error", None)
    assert held["policy"]["sha256"] == ""


def test_of_many_errors_the_first_two_are_told_and_how_many_follow(machine: Machine) -> None:
    """Each event and each line of the operation log has the message while the edit is held back."""
    loaded(document(RULE))
    told()
    loaded(document(*[{"name": "r", "env": [{"name": f"A{number}", "valve": "1"}]} for number in range(3)]))
    [held] = told()
    for said in (held["message"], load().warning):
        assert said.count("error: ") == 2
    assert load().warning.endswith("; and 6 more (reassert policy check)")


def test_an_edit_that_is_held_back_and_taken_back_is_told(machine: Machine) -> None:
    good = loaded(document(RULE))
    told()
    loaded("spec: [")
    [held] = told()
    assert (held["event"], held["level"], held["policy"]["sha256"]) == ("policy.held", "warning", good)
    assert held["message"].startswith(f"{SOURCE} is not in force: {SOURCE}:1:")
    loaded(document(RULE))
    [again] = told()
    assert (again["event"], again["before"], again["policy"]["sha256"]) == ("policy.loaded", good, good)
    Path(EVENTS).mkdir()
    loaded(document(RULE, TRIED))
    loaded(document(TRIED))
    assert Path(LOST).stat().st_size == 2, "counted where a full disk does not matter"
