"""A rule in Audit mode beside rules that are enforced: it is told, and changes nothing of what the others do."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.container.identity import identify
from hook.core.decide import Case
from hook.core.events import line
from hook.core.plan import Plan, plan
from hook.core.verdict import CONFIG, CONTAINER, Verdict
from hook.node.artifacts.specs import cdi_spec, reserved_env
from hook.node.probe.hostile import covering
from hook.node.sources import look_at
from unit.nri.support import RESPONSE, running
from unit.support import CONTAINERD, POD, WithPolicy, bind, document, examples, lines, policy, problems, spec, values_of

pytestmark = marks.promise(
    "A rule in Audit mode beside enforced rules changes nothing that these decide, and its hostPath that "
    "hangs delays no container",
    about="Policy",
)

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
PROXY = {"name": "proxy", "mode": "Audit", "env": [{"name": "PROXY", "value": "p"}]}
CONDITIONS: dict[str, Any] = {"annotations": CONTAINERD}


class Tried:
    """One container, decided under a policy as the wrapper does."""

    def __init__(
        self, *rules: dict[str, Any], env: tuple[str, ...] = (), mounts: Any = None, draft: Any = None, **fields: Any
    ) -> None:
        self.policy = policy(*rules, **fields)
        self.spec = spec(env=list(env), mounts=mounts or [], **CONDITIONS)

        def act(decided: Plan, target: Any) -> Verdict:
            if not decided.audit_only():
                decided.apply(target)
            return Verdict(CONTAINER if draft else CONFIG, draft=draft)

        self.case = Case(WithPolicy(lambda: self.policy), "0a")
        self.verdict: Verdict = self.case.run(lambda: (identify(self.spec), self.spec), act)

    @property
    def event(self) -> dict[str, Any]:
        assert self.verdict.event is not None
        parsed: dict[str, Any] = json.loads(line(self.verdict.event))
        return parsed

    def edits(self) -> list[tuple[str, str, bool, str]]:
        """Rule, name, whether it was applied, and `mode` of each edit in the event."""
        return [(e["rule"], e["name"], e["applied"], e.get("mode", "")) for e in self.event["edits"]]

    def env(self) -> list[str]:
        return sorted(self.spec.env)


def test_rule_is_enforced_over_a_policy_in_audit_mode() -> None:
    tried = Tried({**CA, "mode": "Enforce"}, {**PROXY, "mode": "Audit"}, env=("CA=/evil",), mode="Audit")
    assert tried.env() == ["CA=/ca.pem"]
    bare = {"name": "proxy", "env": PROXY["env"]}
    assert Tried({**CA, "mode": "Enforce"}, bare, env=("CA=/evil",), mode="Audit").env() == ["CA=/ca.pem"]


@pytest.mark.parametrize("mode", ["Audit", "Enforce"])
def test_policy_of_rules_in_audit_mode_alone_is_in_audit_mode(mode: str) -> None:
    tried = Tried({**CA, "mode": "Audit"}, PROXY, env=("CA=/evil",), mode=mode)
    assert tried.env() == ["CA=/evil"]
    assert (tried.event["mode"], tried.event["applied"]) == ("Audit", False)
    assert [edit["applied"] for edit in tried.event["edits"]] == [False, False]


def test_container_that_only_a_tried_rule_would_change() -> None:
    tried = Tried(CA, PROXY, env=("CA=/ca.pem",))
    assert (tried.event["event"], tried.event["applied"], tried.event["verified"]) == ("container.edited", False, "")
    assert tried.event["tried"] is True
    assert Tried(CA, PROXY, env=("CA=/ca.pem", "PROXY=p")).verdict.event is None


def test_denial_of_a_tried_rule_is_told_and_refuses_nothing() -> None:
    tried = Tried(CA, {**PROXY, "onConflict": "Deny"}, env=("CA=/evil", "PROXY=mine"))
    assert tried.verdict.refusal == ""
    assert tried.env() == ["CA=/ca.pem", "PROXY=mine"]
    event = tried.event
    assert (event["event"], event["level"], event["applied"]) == ("container.would-deny", "warning", True)
    message = "env PROXY is reserved and was set to something else"
    assert event["denials"] == [{"rule": "proxy", "message": message, "mode": "Audit"}]


def test_denial_of_an_enforced_rule_refuses_and_nothing_is_said_to_be_applied() -> None:
    tried = Tried({**CA, "onConflict": "Deny"}, PROXY, env=("CA=/evil",))
    assert "rule ca" in tried.verdict.refusal
    assert "proxy" not in tried.verdict.refusal
    assert tried.event["event"] == "container.denied"
    assert [edit["applied"] for edit in tried.event["edits"]] == [False, False]


OTHER = "/evil"
ATTACKS: dict[str, dict[str, Any]] = {
    "another value": {"env": [{"name": "CA", "value": OTHER}]},
    "absent": {"env": [{"name": "CA", "absent": True}]},
    "a pattern": {"env": [{"name": "C*", "absent": True}]},
    "keep": {"env": [{"name": "CA", "valueFrom": {"deviceAllocation": {"default": "Keep"}}}]},
    "a file that is missing": {"env": [{"name": "CA", "valueFrom": {"file": "/no/such/file"}}]},
    "deny": {"env": [{"name": "CA", "value": OTHER}], "onConflict": "Deny"},
    "another mount": {"mounts": [{"hostPath": "/usr", "mountPath": "/etc/ssl", "readOnly": False}]},
    "no mount": {"mounts": [{"absent": True, "mountPath": "/etc/ssl"}]},
    "a mount below": {"mounts": [{"hostPath": "/usr", "mountPath": "/etc/ssl/certs", "readOnly": False}]},
    "a mount above": {"mounts": [{"hostPath": "/usr", "mountPath": "/etc"}]},
    "allowBelow": {"mounts": [{"hostPath": "/usr", "mountPath": "/etc/ssl", "allowBelow": ["/etc/ssl/certs"]}]},
    "volumesAbove": {"mounts": [{"hostPath": "/usr", "mountPath": "/etc/ssl", "volumesAbove": "Allow"}]},
    "a source that is missing": {"mounts": [{"hostPath": "/no/such", "mountPath": "/etc/ssl"}]},
    "allocations": {"deviceAllocations": {"env": True, "mounts": True, "devices": True, "exclusive": ["/dev/nu*"]}},
    "annotations": {"annotations": [{"name": "*", "absent": True}]},
}
"""What a rule in Audit mode may reserve beside one that is enforced."""


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_tried_rule_changes_nothing_of_an_enforced_one(attack: str, first: bool) -> None:
    """Whatever it reserves, wherever it stands: the same spec, the same refusal as without the tried rule."""
    enforced = {**CA, "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}]}
    rule = {"name": "tried", "mode": "Audit", **ATTACKS[attack]}
    for env in (), ("CA=/evil",), ("CA=/ca.pem", "CA=/evil"), ("CA",):
        for mounts in [], [bind("/etc/ssl/certs")], [bind("/etc/ssl")], [bind("/etc")]:
            alone = Tried(enforced, env=env, mounts=list(mounts))
            tried = Tried(*((rule, enforced) if first else (enforced, rule)), env=env, mounts=list(mounts))
            assert tried.spec.render() == alone.spec.render()
            assert tried.verdict.refusal == alone.verdict.refusal
            decided, expected = tried.verdict.plan, alone.verdict.plan
            assert decided is not None
            assert expected is not None
            assert decided.env.values == expected.env.values  # what exec gets
            assert [e.name for e in decided.mounts] == [e.name for e in expected.mounts]  # what the hook looks at
            of_rule = [e for e in tried.event["edits"] if e["rule"] == "ca"] if tried.verdict.event else []
            assert of_rule == (alone.event["edits"] if alone.verdict.event else [])


NAMES = st.sampled_from(["A", "B", "C*", "?"])
ENTRIES = st.one_of(
    st.builds(lambda name: {"name": name, "absent": True}, NAMES),
    st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(["A", "B"]), st.sampled_from("xy")),
)
RULES = st.lists(
    st.tuples(st.lists(ENTRIES, min_size=1, max_size=2, unique_by=lambda e: e["name"]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=4,
)


@examples(100)
@given(RULES, st.lists(st.sampled_from(["A=x", "A=z", "B", "B=y", "C1=1"])))
def test_enforced_rules_decide_as_without_the_tried_ones(rules: Any, env: list[str]) -> None:
    def given_rules(tried: bool) -> list[dict[str, Any]]:
        return [
            {
                "name": f"r{number}",
                "env": entries,
                "mode": "Audit" if audit else "Enforce",
                "onConflict": "Deny" if deny else "Override",
                "match": {"namespaces": [f"team-{'ab'[number % 2]}", "team-a"]},  # no certain contradiction
            }
            for number, (entries, audit, deny) in enumerate(rules)
            if tried or not audit
        ]

    every, enforced = given_rules(True), given_rules(False)
    if not enforced or any("match the same" in text for text in lines(document(*every))):
        return
    tried, alone = Tried(*every, env=tuple(env)), Tried(*enforced, env=tuple(env))
    assert (tried.env(), tried.verdict.refusal) == (alone.env(), alone.verdict.refusal)


def test_contradiction_is_a_warning_and_the_event_tells_the_refusal_to_come() -> None:
    rule = {"name": "tried", "mode": "Audit", "env": [{"name": "CA", "value": "/other"}]}
    [warning] = problems(document(CA, rule))
    assert warning.severity == "warning"
    assert "rules ca and tried want different things for env CA; tried is only tried (mode: Audit)" in warning.message
    tried = Tried(rule, CA, env=("CA=/evil",))
    assert tried.verdict.refusal == ""
    assert tried.event["denials"] == [
        {"rule": "tried", "message": "wants another value for env CA than rule ca", "mode": "Audit"}
    ]


def test_error_of_a_tried_rule_refuses_nothing() -> None:
    rule = {"name": "tried", "mode": "Audit", "env": [{"name": "F", "valueFrom": {"file": "/no/such/file"}}]}
    tried = Tried(CA, rule, env=("CA=/evil",))
    assert tried.verdict.refusal == ""
    [error] = tried.event["errors"]
    assert (error["rule"], error["mode"], tried.event["event"]) == ("tried", "Audit", "container.would-deny")
    assert tried.env() == ["CA=/ca.pem"]


def test_exception_of_a_tried_rule_refuses_nothing() -> None:
    """Annotations of no known engine make an allocation unknown, which raises: for an enforced rule a refusal."""
    rule = {"name": "tried", "mode": "Audit", "deviceAllocations": {"env": True}}
    target = spec(env=["CA=/evil"], annotations={"io.kubernetes.cri.sandbox-id": "x"}, linux={"cgroupsPath": "/x"})
    node = policy(CA, rule)
    case = Case(WithPolicy(node), "0a")

    def act(decided: Plan, spec: Any) -> Verdict:
        decided.apply(spec)
        return Verdict(CONFIG)

    verdict = case.run(lambda: (identify(target), target), act)
    assert (verdict.refusal, values_of(target.env, "CA")) == ("", ["/ca.pem"])
    assert verdict.event is not None
    assert "annotations claim a pod" in str(verdict.event["denials"])
    assert policy(CA, {**rule, "mode": "Enforce"}).mode == "Enforce"


def test_what_the_wrapper_tried_is_in_the_event_that_the_hook_completes() -> None:
    """The hook sees a corrected container, in which the tried rule's conflict with the enforced one is gone."""
    deny = {"name": "tried", "mode": "Audit", "onConflict": "Deny", "env": CA["env"]}
    first = Tried(CA, PROXY, deny, env=("CA=/evil",))
    assert [denial["rule"] for denial in first.event["denials"]] == ["tried"]
    second = Tried(CA, PROXY, deny, env=tuple(first.spec.env), draft=first.event)
    assert second.edits() == [("ca", "CA", True, ""), ("proxy", "PROXY", False, "Audit")]
    assert second.event["denials"] == first.event["denials"]
    assert second.event["event"] == "container.would-deny"


def test_nri_asks_for_the_enforced_edits_alone(root_dir: Path) -> None:
    """It also tells which tried edits NRI could not make: they would refuse the container."""
    absent = {"name": "tried", "mode": "Audit", "env": [{"name": "BAD", "absent": True}]}
    with running(root_dir, document(CA, PROXY, absent)) as plugin:
        answer = plugin.create(["CA=/evil", "BAD=1"])
        assert not answer.status.code
        adjusted = RESPONSE.FromString(answer.payload).adjust
        assert {entry.key: entry.value for entry in adjusted.env} == {"CA": "/ca.pem"}
        event = plugin.logged()[-1]
        assert event["event"] == "container.would-deny"
        assert [(e["rule"], e.get("mode", "")) for e in event["edits"]] == [
            ("ca", ""),
            ("proxy", "Audit"),
            ("tried", "Audit"),
        ]
        [denial] = event["denials"]
        assert (denial["rule"], denial["mode"]) == ("tried", "Audit")
        assert "NRI cannot remove env" in denial["message"]


@marks.hole(
    "A hostPath that hangs, of a rule in Audit mode, made the NRI plugin refuse all containers",
    since="0.3.0",
    fixed="0.3.0",
    severity="low",
)
def test_nri_refuses_nothing_because_a_tried_rule_takes_too_long(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostPath of its own may hang. The enforced edit is asked for in time.

    A patch: no file system that counts as local hangs when a test wants it.
    """
    ended, planned = threading.Event(), []

    def hangs(*arguments: Any) -> Plan:
        planned.append(arguments)
        if len(planned) > 1:  # the rules that are enforced come first
            ended.wait(20)
        return plan(*arguments)

    monkeypatch.setattr("hook.core.decide.plan", hangs)
    with running(root_dir, document(CA, PROXY)) as plugin:
        answer = plugin.create(["CA=/evil"])
        ended.set()
        assert not answer.status.code, answer.status.message
        adjusted = RESPONSE.FromString(answer.payload).adjust
        assert {entry.key: entry.value for entry in adjusted.env} == {"CA": "/ca.pem"}


def test_engines_files_have_no_entry_of_a_tried_rule() -> None:
    """base_runtime_spec and CDI specs set env themselves, in every container or in those that ask."""
    node = policy(CA, PROXY)
    assert reserved_env(node) == ["CA=/ca.pem"]
    assert [device["name"] for device in cdi_spec(node, "/reassert")["devices"]] == ["ca"]
    certain, others = covering(node, POD)
    assert [match.rule.name for match in certain] == ["ca"]
    assert others == {}, "a rule on trial is not untried"


def test_missing_file_of_a_tried_rule_is_a_warning_for_the_node() -> None:
    env = [{"name": "F", "valueFrom": {"file": "/no/such/file"}}]
    mounts = [{"hostPath": "/no/such", "mountPath": "/m"}]
    findings = list(look_at(policy(CA, {"name": "tried", "mode": "Audit", "env": env, "mounts": mounts})))
    assert [finding.severity for _, finding in findings] == ["warning", "warning"]


@marks.hole(
    "With many audited edits, the log said that an enforced mount was not applied",
    since="0.3.0",
    fixed="0.3.0",
    severity="low",
)
def test_mount_that_the_hook_placed_is_told_after_a_draft_full_of_tried_edits() -> None:
    """A pod can fill a draft: 100 names that a tried pattern forbids. The enforced mount was placed all the same."""
    pattern = {"name": "tried", "mode": "Audit", "env": [{"name": "N_*", "absent": True}]}
    mount = {"name": "ssl", "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}]}
    names = tuple(f"N_{number}=1" for number in range(100))
    draft = Tried(CA, pattern, env=("CA=/ca.pem", *names)).event
    assert (len(draft["edits"]), draft["omitted"]) == (64, {"/edits": 36})
    event = Tried(mount, pattern, env=names, draft=draft).event
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, CONTAINER)
    assert event["omitted"]["/edits"] == 37  # and the mount
