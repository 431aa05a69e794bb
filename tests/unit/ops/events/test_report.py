"""`reassert report`: an Audit week as one page, by workload, with a sentence for each owner."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.ops.events.page import page as page_of
from hook.ops.events.report import as_text, heading
from hook.ops.events.summary import ITEMS, Summary, summarise, workload_of
from unit.node.test_terminal import EVIL, assert_harmless
from unit.ops.events.support import CA, DENIED, MOUNT, NVIDIA, event, write
from unit.support import called

pytestmark = [
    marks.promise("What a container loses by its reserved mounts is in its event, in `explain` and in `report`"),
    marks.promise("An event names what was overridden or added; a mount that a device plugin placed itself is neither"),
    marks.promise("`events` and `report` read the log with its rotated files, and miss no line under a crash loop"),
]


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


def page(summary: Summary, *nodes: str) -> str:
    return page_of(summary, heading(summary), nodes or ("node",), "", "now")


def one(*found: dict[str, Any]) -> Any:
    (workload,) = summarise(found).workloads
    return workload


def test_a_volume_of_the_engines_files_is_named_with_its_path() -> None:
    workload = one(event("node-paths", "agent-x2k9p", nodePaths=["/host: a: /etc/containerd"]))
    assert workload.requests() == [
        "remove or confirm the volume /host: a of container app, which reaches /etc/containerd"
    ]


def test_a_refusal_of_nodepaths_names_its_field_and_what_the_owner_can_do() -> None:
    reason = {"rule": "", "kind": "nodePaths", "message": "the volume /host can be written and reaches /etc/reassert"}
    workload = one(event("denied", "agent-x2k9p", denials=[reason]))
    assert workload.requests() == [f"change a volume of container app: {reason['message']}"]
    assert " nodePaths " in as_text(summarise([event("denied", "agent-x2k9p", denials=[reason])]))
    assert workload.tasks() == []


@pytest.mark.parametrize(
    "reason",
    [
        {"rule": "a", "message": "wants another value for env KIND than rule b"},
        {"rule": "", "message": "no node policy: it is missing"},
    ],
)
def test_what_no_owner_can_cure_is_for_the_nodes_administrator(reason: dict[str, str]) -> None:
    found = [event("denied", "web-x2k9p", denials=[reason])]
    assert (one(*found).requests(), one(*found).tasks()) == ([], [reason["message"]])
    assert f"For the node's administrator, about team-a/web: {reason['message']}." in as_text(summarise(found))


def test_a_volume_that_was_closed_asks_nobody_for_anything() -> None:
    found = [event("node-paths", "exporter-x2k9p", madeReadOnly=["/host/root/run"])]
    assert one(*found).requests() == []
    told = as_text(summarise(found))
    assert "1 had a volume made read-only" in told
    assert "What to ask for" not in told


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
    assert len(page(summarise([event("edited", "web", edits=edits)]))) < 100_000


def test_damaged_events_are_no_reason_to_fail() -> None:
    odd: list[dict[str, Any]] = [
        event("edited", "web", edits=7, container=[1], id=None, timestamp=3, mode=None),
        event("denied", "web", denials=["x", {"rule": 1}], edits=[{}, {"before": 1, "kind": "mount", "name": None}]),
        {"event": "container.edited"},
    ]
    summary = summarise(odd)
    assert as_text(summary)
    assert page(summary)
    assert "No container was changed or refused." in page(Summary())


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


def test_logs_of_many_nodes_are_one_report_in_any_order(tmp_path: Path) -> None:
    """The range is from the earliest to the latest event, whichever log comes first."""
    late = write(tmp_path / "b.jsonl", [event("denied", "web-0", 40, node="b", denials=[DENIED], edits=[NVIDIA])])
    early = write(tmp_path / "a.jsonl", [event("edited", "web-1", n, node="a", edits=[NVIDIA]) for n in (7, 5)])
    done = called("report", str(late), str(early), "--since", "2025-01-01", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["firstEvent"][:16], found["lastEvent"][:16]) == ("2026-01-01T00:05", "2026-01-01T00:40")
    assert (found["nodes"], found["workloads"][0]["nodes"]) == (["a", "b"], ["a", "b"])
    shown = called("report", str(late), str(early), "--since", "2025-01-01", "-o", "html").stdout
    assert "<h1>What the node policy changes on 2 nodes</h1>" in shown
    assert '<td data-name="Nodes">a, b</td>' in shown
    missing = called("report", str(late), str(tmp_path / "none"))
    assert (missing.returncode, "none" in missing.stderr) == (1, True)


def test_the_page_says_an_advice_once_and_names_the_workloads() -> None:
    found = [event("denied", f"app{n:02}-0", n, edits=[NVIDIA], denials=[DENIED]) for n in range(20)]
    text = page(summarise([*found, event("edited", "db-0", 50, edits=[MOUNT])]))
    assert text.count("Remove env NVIDIA_VISIBLE_DEVICES from the pod and its image") == 1
    assert "20 workloads: team-a/app00, team-a/app01" in text
    assert "and 8 more" in text
    assert text.index("<h3>Rule gpu</h3>") < text.index("<h3>Rule company-ca</h3>"), "what refuses comes first"


def test_the_page_draws_what_is_in_the_table() -> None:
    text = page(summarise([event("denied", "web-0", 1, denials=[DENIED]), event("edited", "db-0", 59, edits=[CA])]))
    columns = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="100.0"', text)
    assert [grade for grade, _ in columns] == ["refused", "other"]
    assert "Events per 10 minutes, UTC; the highest column has 1" in text
    assert ">gpu: 1, 1 refused</text>" in text
    assert ">team-a: 2, 1 refused</text>" in text


def test_a_rule_refuses_no_more_containers_than_were_refused() -> None:
    """The policy was changed between: the same env was refused first, and is replaced now."""
    refused = event("denied", "web-0", 1, denials=[DENIED], edits=[NVIDIA])
    text = page(summarise([refused, *(event("edited", "web-0", number, edits=[NVIDIA]) for number in range(2, 6))]))
    assert ">gpu: 5, 1 refused</text>" in text
    assert ">team-a: 5, 1 refused</text>" in text


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
    text = page(summarise(hostile()), "node<1>")
    tags = re.findall(r"<([a-z]\w*)([^>]*)>", text)
    known = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "span",
        "code",
        "div",
        "b",
    }
    known |= {"svg", "text", "rect", "figure", "figcaption", "details", "summary"}
    assert {name for name, _ in tags} <= known | {"table", "thead", "tbody", "tr", "th", "td"}
    attributes = {name for _, inside in tags for name in re.findall(r"([\w-]+)=", re.sub('"[^"]*"', "", inside))}
    drawn = {"viewBox", "preserveAspectRatio", "role", "aria-label", "x", "y", "width", "height"}
    assert attributes <= drawn | {"lang", "charset", "http-equiv", "content", "name", "class", "data-name"}
    assert ATTACKS[0] in html.unescape(text)
    assert_harmless(text)
    assert not re.search(r"url\(|@import|https?:", text), "a resource"
    assert "content=\"default-src 'none';" in text


def test_a_terminal_gets_no_escape() -> None:
    assert_harmless(as_text(summarise(hostile())))


@marks.hole(
    "Events and metrics claimed edits that rules in Audit mode did not make",
    since="0.3.0",
    fixed="0.3.0",
    severity="low",
)
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


def test_a_sandbox_is_no_start_of_a_workload_unless_it_is_refused() -> None:
    """A rule with `podSelector` counts as met for it, since no engine tells its labels before it runs."""
    sandbox = {"namespace": "team-a", "pod": "web-0"}
    found = [event("edited", "web-0", 1, edits=[CA], container=sandbox)]
    assert summarise(found).workloads == []
    [workload] = summarise([*found, event("denied", "web-0", 2, denials=[DENIED], container=sandbox)]).workloads
    assert (workload.starts, workload.outcomes["refused"]) == (1, 1)


STORE = {
    **MOUNT,
    "name": "/etc/ssl/certs",
    "before": [],
    "after": {"source": "/var/lib/reassert/trust/company/live/certs", "options": ["rbind", "rprivate", "ro", "rro"]},
}


def test_what_a_container_loses_is_told_to_its_owner() -> None:
    loss = "cannot write to /etc/ssl/certs: writable by the pod, read-only now"
    workload = one(event("edited", "web-0", 1, edits=[STORE], loses=[loss]))
    assert f"find another place for what it loses of container app: {loss}" in workload.requests()


def test_container_that_ends_again_and_again_beside_a_read_only_store_is_named() -> None:
    def restarted(count: int, edit: dict[str, Any] = STORE, **more: Any) -> Any:
        return one(*[event("edited", "web-0", n, edits=[edit], **more) for n in range(count)])

    assert restarted(2).died() == []
    [said] = restarted(3).died()
    assert said.startswith(
        "container app of pod web-0 was started 3 times with a read-only trust store. If its log says"
    )
    assert said in as_text(summarise([event("edited", "web-0", n, edits=[STORE]) for n in range(3)]))
    aside = {**STORE, "name": "/.reassert-trust"}
    assert restarted(5, aside).died() == restarted(5, MOUNT).died() == []
    assert restarted(5, applied=False).died() == []  # Audit mode
    pods = [event("edited", f"web-{n}", n, edits=[STORE]) for n in range(5)]
    assert one(*pods).died() == []  # of five pods, each once
