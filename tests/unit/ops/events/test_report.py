"""`reassert report`: an Audit week as one page, by workload, with a sentence for each owner."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hook.ops.events.report import as_text, page
from hook.ops.events.summary import ITEMS, Summary, summarise, workload_of
from unit.node.test_terminal import EVIL, assert_harmless
from unit.ops.events.support import CA, DENIED, MOUNT, NVIDIA, event, write
from unit.support import called


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("web-7c5ddbdf54-x2k9p", "web"),
        ("web-api-66b6c48dd5-7xkqz", "web-api"),
        ("nightly-28374950-bxk2v", "nightly"),
        ("fluentd-hx7kd", "fluentd"),
        ("db-0", "db"),
        ("db-11", "db"),
        ("my-class", "my-class"),
        ("web-front", "web-front"),
        ("bcdfg", "bcdfg"),
        ("-0", "-0"),
        ("", ""),
    ],
)
def test_workload_is_the_pods_name_without_what_controllers_append(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


def one(*found: dict[str, Any]) -> Any:
    (workload,) = summarise(found).workloads
    return workload


def test_pods_of_a_workload_are_one_line_with_starts_and_times() -> None:
    audit = {"mode": "Audit", "applied": False}
    found = [
        event("edited", f"web-7c5ddbdf54-x2k9{'bcdfghjk'[n]}", n + 1, edits=[NVIDIA, CA], **audit) for n in range(8)
    ]
    found += [event("would-deny", "web-7c5ddbdf54-x2k9p", 30, edits=[NVIDIA], denials=[DENIED], **audit)]
    workload = one(*found)
    assert (workload.namespace, workload.name, workload.starts) == ("team-a", "web", 9)
    assert {name: count for name, count in workload.outcomes.items() if count} == {"wouldOverride": 8, "wouldRefuse": 1}
    assert (workload.first, workload.last) == ("2026-01-01T00:01:00.000000Z", "2026-01-01T00:30:00.000000Z")
    assert workload.requests() == [
        "remove env NVIDIA_VISIBLE_DEVICES of container app from the pod and its image: "
        "rule gpu refuses the pod otherwise"
    ]
    assert workload.is_refused()


def test_the_owner_is_asked_for_what_the_pod_has_and_not_for_what_is_only_added() -> None:
    assert one(event("edited", "web", edits=[CA])).requests() == []
    assert one(event("edited", "web", edits=[MOUNT])).requests() == [
        "remove the mount at /etc/ssl/certs of container app: rule company-ca replaces it"
    ]
    reason = {"rule": "", "message": "config.json is larger than the limit"}
    assert one(event("denied", "web", denials=[reason])).requests() == [
        "change what makes reassert refuse the pod of container app: config.json is larger than the limit"
    ]


def test_two_events_of_one_container_are_one_start() -> None:
    """NRI's, and the one of the hook behind it. What the hook refuses is not changed too."""
    asked = event("edited", "web", 1, adapter="nri", asked=True, applied=False, edits=[NVIDIA])
    workload = one(asked, event("edited", "web", 1, adapter="hook", edits=[MOUNT]))
    assert (workload.starts, workload.outcomes["overridden"]) == (1, 1)
    assert [item.starts for item in workload.items.values()] == [1, 1]
    refused = one(asked, event("denied", "web", 1, adapter="hook", denials=[DENIED]))
    assert {name: count for name, count in refused.outcomes.items() if count} == {"refused": 1}
    of_an_exec = event("denied", "web", 1, denials=[DENIED])
    assert one(event("edited", "web", 1, edits=[NVIDIA]), of_an_exec).outcomes["overridden"] == 1


def test_additions_overrides_and_trials_are_told_apart() -> None:
    tried = {**NVIDIA, "mode": "Audit"}
    found = [
        event("edited", "web", 1, edits=[CA]),
        event("edited", "web", 2, edits=[CA, MOUNT]),
        event("edited", "web", 3, edits=[CA, tried], tried=True),
        event("edited", "web", 4, edits=[CA], mode="Audit", applied=False),
        event("edited", "web", 5, edits=[MOUNT, tried], tried=True),
    ]
    workload = one(*found)
    counts = {name: count for name, count in workload.outcomes.items() if count}
    assert counts == {"added": 2, "overridden": 2, "wouldOverride": 2, "wouldAdd": 1}
    assert [(item.what, item.starts) for item in workload.items.values()] == [
        ("env REQUESTS_CA_BUNDLE is added", 3),
        ("mount /etc/ssl is replaced", 2),
        ("env NVIDIA_VISIBLE_DEVICES would be replaced", 2),
        ("env REQUESTS_CA_BUNDLE would be added", 1),
    ]


def test_probes_and_events_about_no_container_are_not_counted() -> None:
    probe = event("denied", "web", probe=True, denials=[DENIED])
    summary = summarise(
        [probe, {"event": "agent.listening", "timestamp": "x"}, event("drifted", "web"), {"event": "x"}]
    )
    assert (summary.read, summary.probes, summary.workloads) == (0, 1, [])


def test_a_container_of_no_pod_goes_by_its_name_or_image() -> None:
    container = {"container": "cron", "image": "registry/app:1"}
    assert one(event("edited", edits=[NVIDIA], container=container)).name == "cron"
    assert one(event("edited", edits=[NVIDIA], container={"image": "registry/app:1"})).name == "registry/app:1"


def test_the_owner_of_a_container_outside_kubernetes_is_found_by_name_or_id() -> None:
    """docker writes neither name nor image into config.json."""
    reason = {"rule": "gpu", "message": "m"}
    found = [event("edited", "", number, edits=[NVIDIA], id=f"{number}{'a' * 63}") for number in range(4)]
    summary = summarise([*found, event("denied", "", 9, container={"container": "db"}, denials=[reason])])
    assert summary.workloads[0].name == "db", "what is refused comes first"
    text = as_text(summary)
    assert "unknown" not in text
    assert " containers outside Kubernetes  4 overridden" in text
    ids = ", ".join(f"{number}{'a' * 11}" for number in range(3))
    assert f"- Ask the owner of the containers outside Kubernetes ({ids}, …) to remove env NVIDIA" in text
    assert "from the container and its image: rule gpu replaces it." in text
    assert "- Ask the owner of container db to change what makes rule gpu refuse the container: m." in text


def test_a_pod_author_cannot_make_the_report_large() -> None:
    edits = [{**NVIDIA, "name": f"N_{n}" * 90} for n in range(400)]
    workload = one(event("edited", "web", edits=edits))
    assert (len(workload.items), workload.omitted) == (ITEMS, 400 - ITEMS)
    assert len(page(summarise([event("edited", "web", edits=edits)]), "node", "", "now")) < 100_000


def test_damaged_events_are_no_reason_to_fail() -> None:
    odd: list[dict[str, Any]] = [
        event("edited", "web", edits=7, container=[1], id=None, timestamp=3, mode=None),
        event("denied", "web", denials=["x", {"rule": 1}], edits=[{}, {"before": 1, "kind": "mount", "name": None}]),
        {"event": "container.edited"},
    ]
    summary = summarise(odd)
    assert as_text(summary)
    assert page(summary, "node", "", "now")
    assert "No container was changed or refused." in page(Summary(), "node", "", "now")


# -- the command


def report(log: Path, *arguments: str) -> str:
    done = called("report", "--events", str(log), "--since", "2025-01-01", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_and_json(tmp_path: Path) -> None:
    log = write(tmp_path / "l", [event("denied", "web-0", edits=[NVIDIA], denials=[DENIED])])
    write(tmp_path / "l.1", [event("edited", "web-1", 2, edits=[NVIDIA]), event("edited", "other", 3, edits=[CA])])
    text = report(log)
    assert "team-a       web         1 refused, 1 overridden" in text
    assert "- Ask the owner of team-a/web to remove env NVIDIA_VISIBLE_DEVICES of container app" in text
    found = json.loads(report(log, "-o", "json"))
    assert [(each["workload"], each["starts"], each["pods"]) for each in found["workloads"]] == [
        ("web", 2, 2),
        ("other", 1, 1),
    ]
    assert "No container was changed or refused." in report(log, "--namespace", "team-b")


# -- pod authors choose names

ATTACKS = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</td></tr></table><style>*{display:none}</style>",
    "<a href=javascript:alert(1)>x</a>",
    "&lt;b&gt; &amp; '",
    "\ud800\x00",
    EVIL,
)


def hostile() -> list[dict[str, Any]]:
    """Events in which every text that a pod's author or an image chooses is an attack on the page."""
    found = []
    for number, attack in enumerate(ATTACKS):
        edit = {**NVIDIA, "name": attack, "before": [attack], "rule": "gpu"}
        mount = {**MOUNT, "name": attack, "before": [{"destination": attack, "source": attack}]}
        names = {"namespace": attack, "pod": attack, "container": attack, "image": attack}
        reason = {"rule": "gpu", "message": attack}
        found.append(event("denied", "x", number, container=names, edits=[edit, mount], denials=[reason]))
    return found


def test_no_name_becomes_markup() -> None:
    """In a browser: e2e/test_report_page.py."""
    text = page(summarise(hostile()), "node<1>", "", "now")
    tags = re.findall(r"<([a-z]\w*)([^>]*)>", text)
    known = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "span", "code"}
    assert {name for name, _ in tags} <= known | {"table", "thead", "tbody", "tr", "th", "td"}
    attributes = {name for _, inside in tags for name in re.findall(r"([\w-]+)=", re.sub('"[^"]*"', "", inside))}
    assert attributes <= {"lang", "charset", "http-equiv", "content", "name", "class"}
    assert ATTACKS[0] in html.unescape(text)
    assert_harmless(text)
    assert not re.search(r"url\(|@import|https?:", text), "a resource"
    assert "content=\"default-src 'none';" in text


def test_a_terminal_gets_no_escape() -> None:
    assert_harmless(as_text(summarise(hostile())))


def test_what_only_tried_rules_would_do_is_not_said_to_be_done() -> None:
    """The mode of their events is Enforce, since other rules of the policy are enforced."""
    tried = {"tried": True, "applied": False}
    edits, denials = [{**NVIDIA, "mode": "Audit"}], [{**DENIED, "mode": "Audit"}]
    changed = event("edited", "web", 1, edits=edits, **tried)
    refused = event("would-deny", "db", 2, edits=edits, denials=denials, **tried)
    summary = summarise([changed, refused])
    assert {each.name: each.outcomes["wouldOverride"] for each in summary.workloads} == {"db": 0, "web": 1}
    assert not any(each.outcomes["overridden"] for each in summary.workloads)
    assert "the policy would change or refuse containers of 2 workloads; 1 of them would have a" in as_text(summary)
    enforced = event("edited", "api", 3, edits=[MOUNT, *edits], tried=True)
    text = as_text(summarise([changed, refused, enforced]))
    assert "the policy changed or refused containers of 3 workloads. 1 workload would have a refused container" in text
    assert "had a refused container" not in text
