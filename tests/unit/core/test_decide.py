"""The pipeline of a decision: one event says what was done, and `failurePolicy` decides what a failure means."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import Node

from hook.core.base.errors import TooLarge, Unacceptable, Undecided
from hook.core.base.text import WHERE_TO_LOOK
from hook.core.container.identity import identify
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.plan import Plan
from hook.core.policy.model import Policy
from hook.core.reserve.edits import Reason
from hook.core.verdict import CONFIG, Verdict
from unit.support import POD, WithPolicy, bind, document, policy, spec

pytestmark = marks.promise(
    "One event for each container has the container, the rule and the entries before and after, and no other "
    "env value of a pod"
)

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
Act = Callable[[Plan, Spec], Verdict]


class DecidingNode(Node):
    """A node with an adapter whose actions a test sets."""

    def __init__(self, directory: Path, *rules: dict[str, Any], **fields: Any) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(directory, policy="")
        self.store.mkdir()
        if rules:
            self.compile(document(*rules, **fields))

    def settle(self, *env: str, act: Act = lambda decided, target: Verdict(CONFIG)) -> Verdict:
        case = Case(WithPolicy(self.load, file="/b/config.json"), "0a1b")
        target = spec(env=list(env))
        return case.run(lambda: (identify(target), target), act)

    def failing(self, error: Exception) -> Verdict:
        def act(decided: Plan, target: Spec) -> Verdict:
            raise error

        return self.settle("CA=x", act=act)


def said(verdict: Verdict) -> dict[str, Any]:
    assert verdict.event is not None
    return verdict.event


def test_container_with_nothing_to_say_leaves_no_event(root_dir: Path) -> None:
    verdict = DecidingNode(root_dir, CA).settle("CA=/ca.pem")
    assert (verdict.event, verdict.refusal) == (None, "")
    assert not verdict.handed_on, "it is counted"


def test_correction_is_told_with_where_it_was_looked_at(root_dir: Path) -> None:
    verdict = DecidingNode(root_dir, CA).settle()
    assert verdict.refusal == ""
    event = said(verdict)
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "config.json")
    assert (event["id"], event["adapter"], event["mode"]) == ("0a1b", "runtime", "Enforce")
    assert event["timestamp"] and event["durationMs"]  # which a draft for a later adapter lacks


def test_refusal_names_container_and_rule_and_nobody_acts(root_dir: Path) -> None:
    node = DecidingNode(root_dir, {**CA, "onConflict": "Deny"})
    verdict = node.settle("CA=x", act=lambda decided, target: pytest.fail("it acted"))
    reason = "rule ca: env CA is reserved and was set to something else"
    assert verdict.refusal == f"refused a container of no pod: {reason}{WHERE_TO_LOOK}"
    event = said(verdict)
    assert (event["event"], event["level"], event["applied"]) == ("container.denied", "error", False)


def test_node_without_a_policy_refuses_and_says_so(root_dir: Path) -> None:
    verdict = DecidingNode(root_dir).settle()
    assert "no node policy: " in verdict.refusal
    assert said(verdict)["level"] == "error"


def test_reason_that_an_adapter_finds_while_acting_refuses_and_nothing_counts_as_applied(root_dir: Path) -> None:
    def misled(decided: Plan, target: Spec) -> Verdict:
        return Verdict(CONFIG, [Reason("ca", "mount", "misled")])

    verdict = DecidingNode(root_dir, CA).settle(act=misled)
    assert verdict.refusal == f"refused a container of no pod: rule ca: misled{WHERE_TO_LOOK}"
    event = said(verdict)
    assert (event["event"], event["applied"], event["verified"]) == ("container.denied", False, "")
    assert event["denials"] == [{"rule": "ca", "message": "misled"}]


FAILURES: list[tuple[Exception, str]] = [
    (Undecided("/b/config.json: broken"), "/b/config.json: broken"),
    (OSError(5, "Input/output error"), "/b/config.json: Input/output error"),
    (OSError(5, "Input/output error", "/b/config.json"), "/b/config.json: Input/output error"),
    (ZeroDivisionError("x"), "internal error, please report it: ZeroDivisionError: x"),
]


@pytest.mark.parametrize(("error", "text"), FAILURES)
@pytest.mark.parametrize(
    ("fields", "passes", "event"),
    [
        ({}, False, "container.error"),
        ({"failurePolicy": "Ignore"}, True, "container.error"),
        ({"mode": "Audit"}, True, "container.would-deny"),
        ({"mode": "Audit", "failurePolicy": "Ignore"}, True, "container.error"),
    ],
)
def test_failure_to_act_is_decided_by_the_policy_and_is_the_only_event(
    root_dir: Path, fields: dict[str, str], passes: bool, event: str, error: Exception, text: str
) -> None:
    verdict = DecidingNode(root_dir, CA, **fields).failing(error)
    assert verdict.refusal == ("" if passes else f"refused a container of no pod: {text}{WHERE_TO_LOOK}")
    told = said(verdict)
    assert (told["event"], told["level"], told["applied"]) == (event, "warning" if passes else "error", False)
    assert told["errors"] == [{"rule": "", "message": text}]


@pytest.mark.parametrize("mode", ["Enforce", "Audit"])
def test_what_a_pod_can_cause_is_refused_whatever_the_failure_policy_says(root_dir: Path, mode: str) -> None:
    verdict = DecidingNode(root_dir, CA, failurePolicy="Ignore", mode=mode).failing(Unacceptable("a NUL"))
    kind = {"Enforce": "container.denied", "Audit": "container.would-deny"}[mode]
    assert said(verdict)["event"] == kind
    assert bool(verdict.refusal) == (mode == "Enforce")


@pytest.mark.parametrize(
    "error", [TooLarge("x"), MemoryError("x"), RecursionError("x"), UnicodeEncodeError("utf-8", "x", 0, 1, "x")]
)
def test_failure_that_a_containers_own_text_can_cause_is_refused_too(root_dir: Path, error: Exception) -> None:
    verdict = DecidingNode(root_dir, CA, failurePolicy="Ignore").failing(error)
    assert verdict.refusal
    assert said(verdict)["event"] == "container.denied"


def caused_by(error: OSError) -> Exception:
    try:
        raise Unacceptable("/x of the container cannot be followed") from error
    except Unacceptable as found:
        return found


@marks.hole(
    "With `failurePolicy: Ignore`, a pod that used up a resource of the node let others start unchecked",
    since="0.1.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN])
@pytest.mark.parametrize("made", [lambda error: error, caused_by])
def test_a_shortage_starts_no_container_that_was_not_decided_about(
    root_dir: Path, code: int, made: Callable[[OSError], Exception]
) -> None:
    """Another container may keep the agent's descriptors, or fill the disk. In the agent, a cold start is tried."""
    for mode in ("Enforce", "Audit"):
        verdict = DecidingNode(root_dir / mode, CA, failurePolicy="Ignore", mode=mode).failing(
            made(OSError(code, "short"))
        )
        assert bool(verdict.refusal) == (mode == "Enforce")
        assert said(verdict)["event"] == {"Enforce": "container.error", "Audit": "container.would-deny"}[mode]
    case = Case(WithPolicy(lambda: pytest.fail("a policy is not asked for"), started={"start": "warm"}), "0a1b")
    with pytest.raises((OSError, Unacceptable)):
        case.failed(made(OSError(code, "short")))


def test_failure_before_the_policy_was_read_is_decided_by_it_all_the_same(root_dir: Path) -> None:
    for fields, refusal in (({}, f"refused 0a1b: x{WHERE_TO_LOOK}"), ({"failurePolicy": "Ignore"}, "")):
        node = DecidingNode(root_dir / (refusal[:3] or "ignore"), CA, **fields)
        case = Case(WithPolicy(node.load), "0a1b")
        assert case.failed(Undecided("x")).refusal == refusal


def test_audit_says_what_enforce_would_do(root_dir: Path) -> None:
    verdict = DecidingNode(root_dir, {**CA, "onConflict": "Deny"}, mode="Audit").settle("CA=x")
    event = said(verdict)
    assert (event["event"], event["level"], event["applied"]) == ("container.would-deny", "warning", False)
    assert [edit["name"] for edit in event["edits"]] == ["CA"]


def test_event_that_is_handed_on_is_written_by_who_looks_later_and_a_refusal_at_once(root_dir: Path) -> None:
    node = DecidingNode(root_dir, CA)
    handed_on = node.settle(act=lambda decided, target: Verdict(CONFIG, handed_on=True))
    assert (handed_on.event, handed_on.handed_on) == (None, True)
    refused = node.settle(act=lambda decided, target: Verdict(CONFIG, [Reason("", "", "no")], handed_on=True))
    assert said(refused)["event"] == "container.denied"


def test_event_that_was_handed_on_is_completed(root_dir: Path) -> None:
    draft = {"began": 0, "adapter": "runtime", "edits": [{"name": "CA"}]}
    event = said(
        DecidingNode(root_dir, CA).settle("CA=/ca.pem", act=lambda decided, target: Verdict(CONFIG, draft=draft))
    )  # type: ignore[arg-type]  # a stand-in
    assert (event["timestamp"], event["adapter"], event["edits"]) == (
        "1970-01-01T00:00:00.000000Z",
        "runtime",
        [{"name": "CA", "applied": True}],
    )
    assert event["event"] == "container.edited"


EXCLUSIVE = {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/none*"]}}


@pytest.mark.parametrize("more", [{}, {"mode": "Audit"}])
def test_who_is_to_blame_for_what_hangs(more: dict[str, str]) -> None:
    """The policy and files of the node are for `failurePolicy`. Sources of a pod's mounts are the pod's own doing."""
    reading: dict[str, list[bool]] = {"policy": [], "file": [], "mounts": []}

    def in_force() -> Policy:
        reading["policy"].append(case.reads_node)
        return policy(EXCLUSIVE | more, CA)

    def no_files(path: str, limit: int) -> bytes:
        reading["file"].append(case.reads_node)
        raise FileNotFoundError(path)

    class Mounts(list[Mount]):
        """Those of a container, which say who reads them."""

        def __iter__(self) -> Iterator[Mount]:
            reading["mounts"].append(case.reads_node)
            return super().__iter__()

    case = Case(WithPolicy(in_force, "nri", read=no_files), "0a1b")
    target = spec(mounts=[])
    target.mounts = Mounts([Mount(bind("/a"))])
    case.decide(POD, target)
    assert {kind: set(found) for kind, found in reading.items()} == {
        "policy": {True},
        "file": {True},
        "mounts": {False},
    }


@pytest.mark.parametrize("there", [[], ["/etc/ssl: why"]])
def test_what_the_container_can_make_writable_is_in_its_event(root_dir: Path, there: list[str]) -> None:
    def act(decided: Plan, target: object) -> Verdict:
        done = Verdict(CONFIG)
        done.remountable = there
        return done

    event = said(DecidingNode(root_dir, CA).settle("CA=/evil", act=act))
    assert event.get("remountable", []) == there
    assert ("remountable" in event) is bool(there)
