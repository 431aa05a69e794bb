"""What a container loses by reserved mounts: the right to write, and files that its env names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.audited import AuditedRules
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.facts import Facts
from hook.core.plan import Plan, plan
from hook.core.reserve.losses import LOSSES_LISTED, losses
from hook.core.verdict import CONFIG, Verdict
from unit.support import POD, WithPolicy, bind, container, policy, spec

pytestmark = marks.promise(
    "What a container loses by its reserved mounts is in its event, in `explain` and in `report`", about="Trust store"
)

CERTS = "/etc/ssl/certs"


def decided(source: Path | str, mounts: list[dict[str, object]] | None = None, **mount: Any) -> Plan:
    rules = policy({"name": "ca", "mounts": [{"hostPath": str(source), "mountPath": CERTS, **mount}]})
    facts = Facts()
    facts.directories = {str(source)}
    return plan(rules, container([], mounts, facts=facts))


def read_only(path: str) -> dict[str, object]:
    return {**bind(path), "options": ["rbind", "ro"]}


def test_volume_that_the_pod_could_write_to_is_named_and_a_read_only_one_is_not(root_dir: Path) -> None:
    now = "cannot write to /etc/ssl/certs: writable by the pod, read-only now"
    assert losses(decided(root_dir, [bind(CERTS)]), []) == [now]
    assert losses(decided(root_dir, [bind("/etc/ssl/certs/own")]), []) == [now.replace("certs:", "certs/own:")]
    assert losses(decided(root_dir, [read_only(CERTS)]), []) == []
    assert losses(decided(root_dir, []), []) == []
    assert losses(decided(root_dir, [bind(CERTS)], readOnly=False), []) == []


def test_volume_above_that_stays_is_no_loss(root_dir: Path) -> None:
    assert losses(decided(root_dir, [bind("/etc/ssl")], volumesAbove="Allow"), []) == []


@pytest.mark.parametrize(
    ("entry", "is_lost"),
    [
        ("PGSSLROOTCERT=/etc/ssl/certs/orders-db.pem", True),
        ("PGSSLROOTCERT=/etc/ssl/certs//./orders-db.pem", True),
        ("PGSSLROOTCERT=/etc/ssl/certs/sub/orders-db.pem", True),
        ("OWN=/etc/ssl/certs/ca-certificates.crt", False),
        ("DIR=/etc/ssl/certs", False),
        ("OTHER=/etc/ssl/certs-of-mine/x.pem", False),
        ("ARGS=--ca=/etc/ssl/certs/x.pem", False),
        ("TEXT=x /etc/ssl/certs/x.pem", False),
        ("NAME", False),
    ],
)
def test_variable_that_names_a_hidden_file_is_named_without_its_value(
    entry: str, is_lost: bool, root_dir: Path
) -> None:
    (root_dir / "ca-certificates.crt").touch()
    found = losses(decided(root_dir), ["A=1", entry, "B=2"])
    want = ["env PGSSLROOTCERT names a file that rule ca hides, below /etc/ssl/certs"] if is_lost else []
    assert found == want
    assert losses(decided(root_dir), spec(env=["A=1", entry, "B=2"]).env) == want  # as config.json's text


def test_reserved_variable_and_one_of_a_mount_that_is_let_through_are_no_loss(root_dir: Path) -> None:
    rules = policy(
        {
            "name": "ca",
            "env": [{"name": "CA", "value": "/x"}],
            "mounts": [{"hostPath": str(root_dir), "mountPath": CERTS}],
        }
    )
    assert losses(plan(rules, container([])), ["CA=/etc/ssl/certs/own.pem"]) == []
    own = f"{CERTS}/own.pem"
    let_through = decided(root_dir, [read_only(own)], allowBelow=[own])
    assert losses(let_through, [f"X={own}"]) == []


def test_nothing_may_be_mounted_there_and_a_variable_names_it(root_dir: Path) -> None:
    rules = policy({"name": "none", "mounts": [{"mountPath": "/srv/own", "absent": True}]})
    made = plan(rules, container([], [bind("/srv/own")]))
    assert losses(made, ["X=/srv/own/x"]) == [
        "cannot write to /srv/own: writable by the pod, removed",
        "env X names a file that rule none hides, below /srv/own",
    ]


def test_number_of_losses_is_limited(root_dir: Path) -> None:
    assert len(losses(decided(root_dir), [f"A{n}=/etc/ssl/certs/{n}" for n in range(5000)])) == LOSSES_LISTED


# -- in the event


def case_of(rules: Any, target: Spec) -> Case:
    case = Case(WithPolicy(rules), "0a")
    case.decide(POD, target)
    return case


@pytest.mark.parametrize("mode", ["Enforce", "Audit"])
def test_event_and_its_draft_say_it_and_a_refusal_does_not(mode: str, root_dir: Path) -> None:
    rule = {"name": "ca", "mounts": [{"hostPath": str(root_dir), "mountPath": CERTS}]}
    target = spec(mounts=[bind(CERTS)])
    case = Case(WithPolicy(policy(rule, mode=mode)), "0a")
    made = case.decide(POD, target)
    want = ["cannot write to /etc/ssl/certs: writable by the pod, read-only now"]
    event, draft = case.event(made, Verdict(CONFIG)), case.draft(made, Verdict(CONFIG))
    assert event and draft
    assert event["loses"] == draft["loses"] == want
    made.apply(target)  # what the hook behind create sees
    hook = Case(WithPolicy(policy(rule, mode=mode), "hook"), "0a")
    completed = hook.event(hook.decide(POD, target), Verdict(CONFIG, draft=draft))
    assert completed and completed["loses"] == want
    denying = Case(WithPolicy(policy({**rule, "onConflict": "Deny"})), "0a")
    refused = denying.event(denying.decide(POD, spec(mounts=[bind(CERTS)])), Verdict())
    assert refused and "loses" not in refused


def test_rule_in_audit_mode_says_what_it_would_take(root_dir: Path) -> None:
    tried = {"name": "ca", "mode": "Audit", "mounts": [{"hostPath": str(root_dir), "mountPath": CERTS}]}
    case = Case(WithPolicy(policy({"name": "a", "env": [{"name": "A", "value": "1"}]}, tried)), "0a")
    made = case.decide(POD, spec(mounts=[bind(CERTS)]))
    assert isinstance(case.audited_rules, AuditedRules)
    event = case.event(made, Verdict(CONFIG))
    assert event and event["loses"] == ["cannot write to /etc/ssl/certs: writable by the pod, read-only now"]
