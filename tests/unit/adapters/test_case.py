"""One container in front of one adapter: settings, the event, and what happens when reassert itself fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook.adapters.case import Case, Settings
from hook.base.errors import Refused, TooLarge, Unacceptable, Undecided, Usage
from hook.plan import Plan
from hook.policy.compiler import refresh
from unit.support import document, spec

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}


class Door:
    """An adapter's case on a node with a policy."""

    def __init__(self, directory: Path, *rules: dict[str, Any], **fields: Any) -> None:
        self.source, self.events = directory / "policy.yaml", directory / "events.jsonl"
        arguments = ["--policy", str(self.source), "--store", str(directory / "s"), "--events", str(self.events)]
        self.case = Case("runtime", Settings(arguments), "0a1b")
        (directory / "s").mkdir(parents=True)
        if rules:
            self.source.write_text(document(*rules, **fields))
            refresh(str(self.source), str(directory / "s"))

    def decide(self, *env: str) -> Plan:
        return self.case.decide(spec(env=list(env)))

    def logged(self) -> list[dict[str, Any]]:
        """Every event."""
        return [json.loads(line) for line in self.events.read_text().splitlines()] if self.events.exists() else []


def test_settings_take_absolute_paths_in_both_spellings() -> None:
    settings = Settings(
        ["--policy=/p", "--store", "/s", "--real", "/r", "--mount-ca", "op", "--", "-x", "--", "y"],
        ("real",),
        ("mount-ca",),
    )
    assert (settings.policy, settings.store, settings.real, settings.flags) == ("/p", "/s", "/r", {"mount-ca"})
    assert (settings.operands, settings.rest) == (["op"], ["-x", "--", "y"])
    assert settings.events == "/var/log/reassert/events.jsonl"
    assert Settings([]).rest is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "p"], "--policy takes an absolute path, not 'p'"),
        (["--policy="], "--policy takes an absolute path, not ''"),
        (["--store"], "--store takes an absolute path, not ''"),
        (["--real", "/r"], "unknown option '--real'"),
        (["--mount-ca=yes"], "unknown option '--mount-ca=yes'"),
        (["--polic", "/p"], "unknown option '--polic'"),
    ],
)
def test_settings_refuse_what_they_do_not_know(arguments: list[str], complaint: str) -> None:
    with pytest.raises(Usage) as caught:
        Settings(arguments, flags=("mount-ca",))
    assert str(caught.value) == complaint


def test_container_with_nothing_to_say_leaves_no_event(root_dir: Path) -> None:
    door = Door(root_dir, CA)
    door.case.finish(door.decide("CA=/ca.pem"))
    assert door.logged() == []


def test_correction_is_logged_and_passes(root_dir: Path) -> None:
    door = Door(root_dir, CA)
    door.case.finish(door.decide())
    assert [event["event"] for event in door.logged()] == ["container.edited"]


def test_refusal_is_logged_and_names_container_and_rule(root_dir: Path) -> None:
    door = Door(root_dir, {**CA, "onConflict": "Deny"})
    decided = door.decide("CA=x")
    with pytest.raises(Refused) as caught:
        door.case.finish(decided)
    assert str(caught.value) == (
        "refused a container of no pod: rule ca: env CA is reserved and was set to something else"
    )
    assert [event["event"] for event in door.logged()] == ["container.denied"]


def test_node_without_a_policy_refuses_and_says_so(root_dir: Path) -> None:
    door = Door(root_dir)
    with pytest.raises(Refused, match=r"no node policy: .*/policy.yaml: No such file or directory"):
        door.case.finish(door.decide())
    assert [event["level"] for event in door.logged()] == ["error"]


@pytest.mark.parametrize(
    ("fields", "passes"),
    [({}, False), ({"failurePolicy": "Ignore"}, True), ({"mode": "Audit"}, True)],
)
def test_failure_is_decided_by_the_policy(root_dir: Path, fields: dict[str, str], passes: bool) -> None:
    door = Door(root_dir, CA, **fields)
    door.decide()
    failures: list[tuple[Exception, str]] = [
        (Undecided("/b/config.json: broken"), "/b/config.json: broken"),
        (OSError(28, "No space left on device"), "/b/config.json: No space left on device"),
        (ZeroDivisionError("x"), "internal error, please report it: ZeroDivisionError: x"),
    ]
    for error, text in failures:
        if passes:
            door.case.fail(error, "/b/config.json")
        else:
            with pytest.raises(Refused) as caught:
                door.case.fail(error, "/b/config.json")
            assert str(caught.value) == f"refused a container of no pod: {text}"
    assert [event["errors"] for event in door.logged()] == [[{"rule": "", "message": text}] for _, text in failures]


def test_failure_before_the_policy_was_read_is_decided_by_it_all_the_same(root_dir: Path) -> None:
    with pytest.raises(Refused, match=r"^refused 0a1b: x$"):
        Door(root_dir / "fail", CA).case.fail(Undecided("x"), "stdin")
    Door(root_dir / "ignore", CA, failurePolicy="Ignore").case.fail(Undecided("x"), "stdin")


def test_refusal_while_acting_is_only_logged_in_audit_mode(root_dir: Path) -> None:
    door = Door(root_dir, CA, mode="Audit")
    door.decide()
    door.case.refuse("ca", "misled")
    assert door.logged()[0]["denials"] == [{"rule": "ca", "message": "misled"}]


@pytest.mark.parametrize(
    "error", [Unacceptable("x"), TooLarge("x"), MemoryError("x"), RecursionError("x"), "\ud800".encode]
)
def test_failure_that_a_containers_own_text_can_cause_is_refused_whatever_the_failure_policy(
    root_dir: Path, error: Any
) -> None:
    if not isinstance(error, Exception):
        with pytest.raises(UnicodeError) as caught:
            error()
        error = caught.value
    door = Door(root_dir, CA, failurePolicy="Ignore")
    with pytest.raises(Refused, match="refused 0a1b: "):
        door.case.fail(error, "/b/config.json")
    [event] = door.logged()
    assert (event["event"], event["applied"]) == ("container.denied", False)


def test_failure_that_a_containers_own_text_can_cause_is_logged_in_audit_mode(root_dir: Path) -> None:
    door = Door(root_dir, CA, mode="Audit")
    door.case.fail(Unacceptable("x"), "/b/config.json")
    assert [event["event"] for event in door.logged()] == ["container.denied"]
