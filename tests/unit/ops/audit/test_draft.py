"""`audit --policy DRAFT`: what a draft decides about a running container otherwise than the policy in force."""

from __future__ import annotations

from typing import Any

import marks
import pytest

from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import ANNOTATION, stamp
from hook.ops.audit.audit import (
    AS_IN_FORCE,
    AT_ITS_START,
    DRIFTED,
    EXEMPT,
    IN_POLICY,
    UNKNOWN,
    Audit,
    ContainerReport,
    Round,
)
from hook.ops.audit.command import as_table
from hook.ops.audit.draft import compared
from hook.ops.audit.judge import Difference
from unit.support import CONTAINERD, policy, spec

pytestmark = marks.promise(
    "`policy diff` says what a change means, and `audit --policy DRAFT` which running containers it affects"
)

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "B", "absent": True}]}


def test_compared_are_edits_and_refusals() -> None:
    """Not what a policy reserves: a container that has it already would start as before."""
    inside = spec(env=[], annotations={**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "a"})
    outside = spec(env=[], annotations=CONTAINERD)
    rule = {"name": "r", "match": {"namespaces": ["a"]}, "env": [{"name": "X", "value": "1"}]}
    changed = {**rule, "env": [{"name": "X", "value": "2"}]}
    told = [compared(policy(CA, rule), policy(CA, changed), identify(each), each) for each in (inside, outside)]
    assert told == [(["env X"], []), ([], [])]
    has = spec(env=["X=2"], annotations={**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "a"})
    assert compared(policy(rule, mode="Audit"), policy(changed), identify(has), has) == ([], [])
    assert compared(policy(rule, mode="Audit"), policy(rule), identify(has), has) == (["env X"], [])
    denies = policy({**rule, "onConflict": "Deny"})
    assert compared(policy(rule), denies, identify(has), has) == (["env X", "refusal"], [])
    assert compared(policy(rule), denies, identify(inside), inside) == ([], [])


def test_what_the_wrapper_corrected_is_not_known_without_the_rule() -> None:
    """The config.json has what the rule wanted, and not what the pod had asked for."""
    one = spec(env=["CA=/ca.pem"], annotations=CONTAINERD)
    one.annotations = stamp(CONTAINERD, Reserved({"CA": "/ca.pem"}, ["B"]), fingerprint="")
    one = Spec(one.render(), "config.json")
    assert compared(policy(CA), policy(), identify(one), one) == ([], ["env CA", "env B"])
    assert compared(policy(CA), policy(CA), identify(one), one) == ([], [])
    never = spec(env=["CA=/ca.pem"], annotations=CONTAINERD)
    forged = spec(env=["CA=/ca.pem"], annotations={**CONTAINERD, ANNOTATION: one.annotations[ANNOTATION]})
    for other in (never, forged):
        assert compared(policy(CA), policy(), identify(other), other) == ([], [])


def test_a_policy_in_audit_mode_touches_nothing_until_it_is_enforced() -> None:
    one = spec(env=[], annotations=CONTAINERD)
    two = spec(env=["B=1"], annotations=CONTAINERD)
    audit, other = policy(CA, mode="Audit"), policy({**CA, "env": CA["env"][:1]}, mode="Audit")
    assert compared(audit, policy(CA), identify(one), one) == (["env CA"], [])
    assert compared(audit, policy(CA), identify(two), two) == (["env CA", "env B"], [])
    assert compared(audit, audit, identify(two), two) == ([], [])
    assert compared(audit, other, identify(two), two) == (["env B"], [])


def found(*reports: ContainerReport) -> Audit:
    return Audit(Round(policy(CA), in_force=policy()), list(reports))


def report(number: int, state: str, **more: Any) -> ContainerReport:
    return ContainerReport(f"{number}", f"a/p/{number}", "a", "p", "containerd", 7, state, **more)


def difference(name: str, why: str) -> Difference:
    return Difference("ca", "env", name, f"env {name} is missing", why)


def test_the_table_says_once_what_the_draft_changes_and_what_stays_as_it_is() -> None:
    drifted = report(1, DRIFTED, differences=(difference("CA", AT_ITS_START),), changes=("env CA", "env X"))
    volumes = "its volumes reach reassert's own files, or an engine's"
    next_start = ("refused: nodePaths.engine is Refuse", "refused: a link")
    refused = report(2, IN_POLICY, next_start=next_start, changes=("refusal",))
    same = report(3, DRIFTED, differences=(difference("CA", AS_IN_FORCE),))
    freed = report(4, IN_POLICY, unreserved=("env OLD",))
    exempt = report(5, EXEMPT, because="namespace a is excluded", line="p.yaml:6", changes=("mount /m",))
    first, _, *rows = as_table(found(drifted, refused, same, freed, exempt, report(6, IN_POLICY))).splitlines()
    assert [" ".join(row.split()).partition(" containerd ")[2] for row in rows[1:]] == [
        f"rule ca: env CA is missing {AT_ITS_START}",
        f"env X is decided otherwise than in force {AT_ITS_START}",
        f"at its next start refused: nodePaths.engine is Refuse {volumes}",
        "at its next start refused: a link its config.json, its files and its mounts, as they are now",
        f"rule ca: env CA is missing {AS_IN_FORCE}",
        f"env OLD is in force, and not in this policy {AT_ITS_START}",
        "namespace a is excluded p.yaml:6",
        f"mount /m is decided otherwise than in force {AT_ITS_START}",
    ]
    assert first == (
        "6 containers: at the next start 4 would start otherwise than under the policy in force, 1 would be refused. "
        "Policy policy.yaml (Enforce)"
    )


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([report(1, IN_POLICY, changes=("env X",)), report(2, UNKNOWN)], 1),
        ([report(1, IN_POLICY, unreserved=("env X",))], 1),
        ([report(1, IN_POLICY, next_start=("refused: x",))], 1),
        ([report(1, DRIFTED, differences=(difference("CA", AS_IN_FORCE),))], 0),
        ([report(1, IN_POLICY), report(2, UNKNOWN)], 4),
        ([], 0),
    ],
)
def test_the_exit_status_says_whether_the_draft_changes_anything(reports: list[ContainerReport], status: int) -> None:
    assert found(*reports).exit_status() == status
