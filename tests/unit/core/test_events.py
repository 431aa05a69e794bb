"""The event of a container: identity, rule, edit, earlier and new value; only env values of the policy are logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core import events
from hook.core.base.errors import Unacceptable
from hook.core.container.identity import Identity
from hook.core.events import line
from hook.core.facts import Container
from hook.core.plan import Plan, plan
from hook.core.verdict import Verdict
from unit.ownmachine import Machine
from unit.support import POD, bind, case, container, policy

pytestmark = marks.promise(
    "One event for each container has the container, the rule and the entries before and after, and no other "
    "env value of a pod",
    about="Events and metrics",
)

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}


def with_annotations(annotations: dict[str, str]) -> Container:
    """A container with annotations."""
    asked = container()
    asked.start.annotations = annotations
    return asked


def event(decided: Plan, verified: str = "config.json") -> dict[str, object]:
    """The event of a decision."""
    return case("runtime", "0a1b", decided.policy).event(decided, Verdict(verified)) or {}


def test_event_tells_who_and_what_and_by_which_policy() -> None:
    node = policy({**CA, "mounts": [{"hostPath": "/h", "mountPath": "/m"}]})
    record = event(plan(node, container(["CA=/tmp/x", "CA"], [bind("/m/", "/evil")])))
    assert {key: record[key] for key in ("event", "level", "applied", "adapter", "id", "mode")} == {
        "event": "container.edited",
        "level": "info",
        "applied": True,
        "adapter": "runtime",
        "id": "0a1b",
        "mode": "Enforce",
    }
    assert record["container"] == {
        "namespace": "team-a",
        "pod": "web-1",
        "uid": "1-2-3",
        "container": "app",
        "image": "registry.example/app:1",
    }
    assert record["policy"] == {"path": "policy.yaml", "sha256": node.fingerprint}
    assert record["edits"] == [
        {
            "rule": "ca",
            "kind": "env",
            "name": "CA",
            "before": [{"bytes": 6}, None],
            "after": "/ca.pem",
            "applied": True,
        },
        {
            "rule": "ca",
            "kind": "mount",
            "name": "/m",
            "before": [{"destination": "/m/", "source": "/evil"}],
            "after": {"source": "/h", "options": ["rbind", "rprivate", "ro"]},
            "applied": True,
        },
    ]
    assert isinstance(record["durationMs"], float)


def test_what_nobody_looked_at_was_asked_for_and_is_not_said_to_be_applied() -> None:
    decided = plan(policy(CA), container(["CA=x"]))
    seen, unseen = event(decided), event(decided, verified="")
    assert (seen["applied"], seen["verified"], "asked" in seen) == (True, "config.json", False)
    assert (unseen["applied"], unseen["verified"], unseen["asked"]) == (False, "", True)
    audited = event(plan(policy(CA, mode="Audit"), container(["CA=x"])))
    assert (audited["applied"], audited["verified"], "asked" in audited) == (False, "", False)


def test_env_that_the_policy_does_not_own_is_never_in_an_event() -> None:
    node = policy({**CA, "onConflict": "Deny"}, {"name": "n", "env": [{"name": "N_*", "absent": True}]})
    target = container(["SECRET=hunter2", "CA=x", "N_1=y", "CAB=hunter2"])
    assert "hunter2" not in json.dumps(event(plan(node, target)))


def test_failure_is_told_whether_it_was_let_through() -> None:
    rule = {"name": "r", "env": [{"name": "A", "valueFrom": {"file": "/gone"}}]}
    refused = event(plan(policy(rule), container()))
    ignored = event(plan(policy(rule, failurePolicy="Ignore"), container()))
    assert (refused["event"], refused["level"], refused["applied"]) == ("container.denied", "error", False)
    assert (ignored["event"], ignored["level"]) == ("container.error", "warning")
    assert refused["errors"] == [
        {"rule": "r", "message": "cannot tell the value of env A: /gone was not read"},
    ]


def test_start_under_a_held_back_edit_is_told() -> None:
    node = policy(CA)
    node.warning = "the last good policy stays in force: why"
    record = event(plan(node, container(["CA=/ca.pem"])))
    assert (record["event"], record["level"], record["warning"]) == ("policy.held", "warning", node.warning)


LONG = "N_" + "x" * 5000
DENY: dict[str, tuple[dict[str, object], Any, str]] = {
    "env": ({"env": [{"name": "N_*", "absent": True}]}, container([f"{LONG}=1"]), "must be absent and was set"),
    "mount": (
        {"mounts": [{"hostPath": "/h", "mountPath": "/m"}]},
        container([], [bind(f"/m/{LONG}")]),
        "mount /m is reserved and /m/N_xxx",
    ),
    "annotation": (
        {"annotations": [{"name": "N_*", "absent": True}]},
        with_annotations({LONG: "1"}),
        "must be absent and was set",
    ),
}


@pytest.mark.parametrize("kind", DENY)
def test_long_name_does_not_push_the_reason_out_of_the_log(kind: str) -> None:
    rule, asked, reason = DENY[kind]
    record = event(plan(policy({"name": "r", **rule, "onConflict": "Deny"}), asked))
    [denial] = json.loads(line(record))["denials"]
    assert reason in denial["message"]
    assert "sha256" in denial["message"]
    assert not denial["message"].endswith("…")


@pytest.fixture
def marks(machine: Machine) -> Path:
    """The directory in which `verify` marks its probes."""
    Path(events.PROBES).parent.mkdir()
    return Path(events.PROBES)


def failed(adapter: str) -> dict[str, Any]:
    """The event of a container about which nothing could be decided."""
    return case(adapter, "0a1b", policy()).failed(Unacceptable("no")).event or {}


def test_a_probe_is_known_by_its_container_id(marks: Path) -> None:
    assert "probe" not in failed("runtime")
    marks.mkdir(mode=0o700)
    assert not events.is_probe("runtime", "0a1b", POD)
    (marks / "0a1b").touch()
    assert failed("hook")["probe"] is True
    assert not events.is_probe("hook", "0a1", POD)


def test_a_uid_counts_only_where_a_runtime_says_it(marks: Path) -> None:
    """A docker user can write any UID into config.json: `docker run --annotation io.kubernetes.cri.sandbox-uid=…`."""
    marks.mkdir(mode=0o700)
    (marks / str(POD.uid)).touch()
    assert events.is_probe("nri", "0a1b", POD)
    for adapter in ("runtime", "hook"):
        assert events.is_probe(adapter, "0a1b", POD), "a sandbox, whose id nobody knows before it runs"
        for engine in ("docker", "podman", ""):
            assert not events.is_probe(adapter, "0a1b", Identity(engine, True, uid=POD.uid))


def test_no_name_of_a_pods_becomes_a_path(marks: Path) -> None:
    marks.mkdir(mode=0o700)
    for name in ("", ".", "..", "../probes", "/"):
        assert not events.is_probe("nri", name, Identity("containerd", True, uid=name))


def test_a_directory_that_others_write_marks_nothing(marks: Path) -> None:
    marks.mkdir(mode=0o700)
    (marks / "0a1b").touch()
    marks.chmod(0o777)
    assert not events.is_probe("runtime", "0a1b", POD)
