"""Sums up the event log by workload: what `reassert report` shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from hook.core import events
from hook.core.policy.model import AUDIT
from hook.core.policy.trust_layout import ASIDE_PATH, store_of
from hook.core.reserve.node_paths import KIND as NODE_PATHS
from hook.ops.events import select
from hook.ops.events.reader import Event

REFUSED, OVERRIDDEN, ADDED, FAILED, REPORTED = "refused", "overridden", "added", "failed", "reported"
WOULD_REFUSE, WOULD_OVERRIDE, WOULD_ADD = "wouldRefuse", "wouldOverride", "wouldAdd"
CLOSED, WOULD_CLOSE = "madeReadOnly", "wouldMakeReadOnly"
OUTCOMES = (
    *(WOULD_REFUSE, REFUSED, WOULD_OVERRIDE, OVERRIDDEN, WOULD_ADD, ADDED),
    *(FAILED, REPORTED, WOULD_CLOSE, CLOSED),
)
"""The results of a start, the most serious first. ADDED: it got what it lacked, and nothing of its own was replaced.
FAILED: reassert itself could not decide. REPORTED: nothing, but a volume reaches files of an engine (`nodePaths`).
CLOSED: part of a volume is read-only."""

OUTCOME_WORDS = {
    WOULD_REFUSE: "would be refused",
    REFUSED: "refused",
    WOULD_OVERRIDE: "would be overridden",
    OVERRIDDEN: "overridden",
    WOULD_ADD: "would be added to",
    ADDED: "added to",
    FAILED: "not decided",
    REPORTED: "reported",
    WOULD_CLOSE: "would have a volume made read-only",
    CLOSED: "had a volume made read-only",
}
"""The same in words, after a number of containers."""

_GRAVE = (WOULD_REFUSE, REFUSED)

GRADES = ("refused", "changed", "other")
"""How serious an event is: a container is or would be refused, overridden, or anything else."""

TIMES = 60_000
"""Ten-minute periods that are kept with their number of events: more than a year of them."""

_ADMINISTRATORS = " than rule ", "no node policy: "
"""Texts of reasons about which the owner of a pod can do nothing: rules that contradict each other, and no policy."""

ITEMS = 50
"""Different entries that are kept of a workload. Pod authors choose names and paths; further ones are only counted."""

_WORKLOADS = 5000
"""Limit of workloads, so that invented names cannot exhaust memory. Events of further ones are counted."""

RESTARTS = 3
"""Starts of one container of a pod, with a read-only trust store, from which on they are told."""

_IDS = 200_000
"""Container ids that are kept of all workloads, to count a container with several events once."""


# Kubernetes uses only these characters in generated names (apimachinery, util/rand): few words consist of them.
_HASH = "[bcdfghjklmnpqrstvwxz2456789]"

_SUFFIXES = (
    re.compile(rf"-{_HASH}{{6,10}}-{_HASH}{{5}}$"),  # Deployment: the ReplicaSet's hash, then the pod's
    re.compile(rf"-\d{{8,10}}-{_HASH}{{5}}$"),  # CronJob: the Job's time, then the pod's hash
    re.compile(rf"-{_HASH}{{5}}$"),  # ReplicaSet, DaemonSet, Job
    re.compile(r"-\d{1,4}$"),  # StatefulSet: the pod's number
)

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
"""How a timestamp of an event begins."""

OUTSIDE = "containers outside Kubernetes"
_SHOWN_IDS = 3


@dataclass
class Item:
    """One thing that a rule, or a field of the policy, says about a workload. `starts`: containers with it.

    `request`: for the workload's owner. `task`: for the node's administrator, where the owner can do nothing. `where`:
    the words of `request` that name the container.
    """

    rule: str
    what: str
    request: str
    refuses: bool
    starts: int = 0
    task: str = ""
    where: str = ""

    def advice(self) -> str:
        """`request` without the container's name, as it is the same for other workloads."""
        return self.request.replace(self.where, "", 1)


@dataclass
class Workload:
    """The containers of one workload. `starts`: those with an event. `omitted`: items beyond those that are kept.

    `name`: "" for containers outside Kubernetes of which neither name nor image is known. `ids`: some container ids of
    containers without a pod. `restarts`: starts with a trust store over the image's CA files, by pod and container.
    `nodes`: where it started.
    """

    namespace: str
    name: str
    first: str
    last: str
    starts: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    restarts: dict[tuple[str, str], int] = field(default_factory=dict)
    omitted: int = 0

    def title(self) -> str:
        """The name for tables."""
        return self.name or OUTSIDE

    def owned(self) -> str:
        """The name for a sentence to the owner."""
        if self.pods or self.namespace:
            return f"{self.namespace}/{self.name}" if self.namespace else self.name
        ids = ", ".join(self.ids) + (", …" if self.starts > len(self.ids) else "")
        return f"container {self.name}" if self.name else f"the {OUTSIDE} ({ids})" if self.ids else f"the {OUTSIDE}"

    def is_refused(self) -> bool:
        """Whether a container of it is refused, or would be."""
        return bool(self.refusals())

    def refusals(self) -> int:
        """How many of its containers were refused, or would be."""
        return sum(self.outcomes[name] for name in _GRAVE)

    def died(self) -> list[str]:
        """Containers that ended again and again beside a store that they cannot write to. Nothing here says why."""
        often = sorted((n, *key) for key, n in self.restarts.items() if n >= RESTARTS)
        return [
            f"container {name} of pod {pod} was started {count} times with a read-only trust store. If its log says "
            "Read-only file system or Device or resource busy, it died of that: trust: {mount: Aside}"
            for count, pod, name in often[::-1][:_SHOWN_IDS]
        ]

    def requests(self) -> list[str]:
        """What to ask the owner for, each once; what refuses a container comes first."""
        ordered = sorted(self.items.values(), key=lambda item: not item.refuses)
        return list(dict.fromkeys(item.request for item in ordered if item.request))

    def tasks(self) -> list[str]:
        """What the node's administrator has to do, each once."""
        return list(dict.fromkeys(item.task for item in self.items.values() if item.task))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "namespace": self.namespace,
            "workload": self.name,
            "pods": len(self.pods),
            "nodes": sorted(self.nodes),
            "containerIds": self.ids,
            "starts": self.starts,
            "outcomes": self.outcomes,
            "firstSeen": self.first,
            "lastSeen": self.last,
            "rules": [{k: v for k, v in asdict(item).items() if k != "where"} for item in self.items.values()],
            "omitted": self.omitted,
            "requests": self.requests(),
            "tasks": self.tasks(),
            "restartedWithReadOnlyStore": self.died(),
        }


@dataclass
class Summary:
    """All workloads. `read`: events of containers. `probes`: events of `verify`, which count nowhere else.

    `omitted`: events of workloads beyond those that are kept. `modes`: the modes of the policy that events name.
    `first`, `last`: the earliest and the latest timestamp. `nodes`: those that events name. `times`: the number of
    events by ten minutes (the start of a timestamp) and grade.
    """

    workloads: list[Workload] = field(default_factory=list)
    read: int = 0
    probes: int = 0
    omitted: int = 0
    first: str = ""
    last: str = ""
    modes: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    times: dict[tuple[str, str], int] = field(default_factory=dict)

    def refused(self) -> int:
        """How many workloads have a container that is refused, or would be."""
        return sum(workload.is_refused() for workload in self.workloads)

    def is_audited(self) -> bool:
        """Whether no container was changed or refused: the policy is in Audit mode, or all rules that said anything."""
        return self.modes == {"Audit"} or not self._has(OVERRIDDEN, ADDED, REFUSED, FAILED)

    def would_refuse_only(self) -> int:
        """How many workloads have a container that would be refused, and none that was."""
        return self.refused() - sum(bool(workload.outcomes[REFUSED]) for workload in self.workloads)

    def _has(self, *outcomes: str) -> bool:
        return any(workload.outcomes[name] for workload in self.workloads for name in outcomes)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "firstEvent": self.first,
            "lastEvent": self.last,
            "modes": sorted(self.modes),
            "nodes": sorted(self.nodes),
            "events": self.read,
            "probeEvents": self.probes,
            "omittedEvents": self.omitted,
            "workloads": [workload.as_json() for workload in self.workloads],
        }


def summarise(found: Iterable[Event]) -> Summary:
    """Sum up events, in any order."""
    summary = Summary()
    workloads: dict[tuple[str, str], Workload] = {}
    seen: set[tuple[str, str]] = set()
    for event in found:
        outcomes = _outcomes(event)
        if not outcomes or (_is_of_sandbox(event) and not {REFUSED, WOULD_REFUSE, FAILED} & {*outcomes}):
            continue
        if event.get("probe") is True:
            summary.probes += 1
            continue
        when = str(event.get("timestamp", ""))
        summary.read += 1
        if _TIME.match(when):
            summary.first, summary.last = min(summary.first or when, when), max(summary.last, when)
        summary.modes.add(str(event.get("mode") or "unknown"))
        node = str(event.get("node") or "")
        if node:
            summary.nodes.add(node)
        period = when[:15] + "0", _grade(outcomes)
        if period in summary.times or len(summary.times) < TIMES:
            summary.times[period] = summary.times.get(period, 0) + 1
        key = _names(event)
        workload = workloads.get(key)
        if workload is None:
            if len(workloads) == _WORKLOADS:
                summary.omitted += 1
                continue
            workload = workloads[key] = Workload(*key, when, when)
        if node:
            workload.nodes.add(node)
        _count(workload, event, outcomes, seen)
    summary.workloads = sorted(
        workloads.values(), key=lambda each: (not each.is_refused(), -each.starts, each.namespace, each.name)
    )
    return summary


def _grade(outcomes: list[str]) -> str:
    """One of GRADES."""
    if any(outcome in _GRAVE for outcome in outcomes):
        return GRADES[0]
    return GRADES[1] if {OVERRIDDEN, WOULD_OVERRIDE} & {*outcomes} else GRADES[2]


def _is_of_sandbox(event: Event) -> bool:
    """Whether the container is a pod's sandbox, in which none of the pod's programs run.

    The engine does not tell a sandbox's labels before it runs, so a rule with `podSelector` counts as met for it.
    """
    container = select.container_of(event)
    return bool(container.get("pod")) and not container.get("container")


def _names(event: Event) -> tuple[str, str]:
    """Namespace and workload. A container outside Kubernetes has no namespace, and the image says what it is."""
    container = select.container_of(event)
    if container.get("pod"):
        return container.get("namespace", ""), workload_of(container["pod"])
    name = container.get("container") or container.get("image", "")
    return container.get("namespace", ""), name


def _outcomes(event: Event) -> list[str]:
    """The result of the start: what enforced rules did, and what rules in Audit mode would have done."""
    kind, audits = event["event"], select.is_audited(event)
    if kind in (events.DENIED, events.ERROR):
        return [REFUSED if kind == events.DENIED else FAILED]
    found = {WOULD_REFUSE} if kind == events.WOULD_DENY else set()
    found |= {REPORTED} if kind == events.NODE_PATHS and event.get("nodePaths") else set()
    found |= {closed for closed in (CLOSED, WOULD_CLOSE) if event.get(closed)}
    for edit in select.entries(event, "edits") if kind in (events.EDITED, events.WOULD_DENY) else []:
        override = select.overrides(edit)
        if not (audits or select.entry_is_audited(edit)):
            found.add(OVERRIDDEN if override else ADDED)
        elif kind != events.WOULD_DENY:
            found.add(WOULD_OVERRIDE if override else WOULD_ADD)
    hidden = {more for less, more in ((OVERRIDDEN, ADDED), (WOULD_OVERRIDE, WOULD_ADD)) if less in found}
    return [outcome for outcome in OUTCOMES if outcome in found - hidden]


def _count(workload: Workload, event: Event, outcomes: list[str], seen: set[tuple[str, str]]) -> None:
    """Count one event. `seen`: container ids, with the outcome or the entry that was counted for them."""
    workload.first = min(workload.first, str(event.get("timestamp", "")))
    workload.last = max(workload.last, str(event.get("timestamp", "")))
    pod = select.container_of(event).get("pod", "")
    if pod and len(workload.pods) < ITEMS * 100:
        workload.pods.add(pod)
    container_id = str(event.get("id", ""))
    short = container_id[:12]
    if short and not pod and short not in workload.ids and len(workload.ids) < _SHOWN_IDS:
        workload.ids.append(short)

    def is_new(what: str) -> bool:
        """NRI and the hook behind it each write an event about one container."""
        key = (container_id, what)
        if not container_id or key in seen:
            return not container_id
        if len(seen) < _IDS:
            seen.add(key)
        return True

    if is_new(""):
        workload.starts += 1
        _count_restart(workload, pod, event)
    for outcome in outcomes:
        if is_new(outcome):
            workload.outcomes[outcome] += 1
    # The hook refused what the NRI plugin had asked for. One adapter alone writes two such events only about an exec.
    for done in (OVERRIDDEN, ADDED) if REFUSED in outcomes and event.get("adapter") == "hook" else ():
        if (container_id, done) in seen:
            seen.remove((container_id, done))
            workload.outcomes[done] -= 1
    for item in _items(event, outcomes[0]):
        key = (item.rule, item.what)
        kept = workload.items.get(key)
        if kept is None:
            if len(workload.items) == ITEMS:
                workload.omitted += 1
                continue
            kept = workload.items[key] = item
        if item.refuses:  # the rule was changed since
            kept.refuses, kept.request = True, item.request
        if is_new(f"{item.rule}\n{item.what}"):
            kept.starts += 1


def _count_restart(workload: Workload, pod: str, event: Event) -> None:
    """Count the start of a pod's container that has a trust store over the CA files of its image."""
    stores = []
    for edit in select.entries(event, "edits"):
        after = edit.get("after")
        if edit.get("kind") == "mount" and isinstance(after, dict) and edit.get("name") != ASIDE_PATH:
            stores.append(bool(store_of(str(after.get("source")))) and "ro" in (after.get("options") or ()))
    key = pod, select.container_of(event).get("container", "")
    acted = event.get("applied") is True or event.get("asked") is True
    if acted and any(stores) and all(key) and len(workload.restarts) < ITEMS * 100:
        workload.restarts[key] = workload.restarts.get(key, 0) + 1


def _items(event: Event, outcome: str) -> list[Item]:
    name = select.container_of(event).get("container", "")
    subject = "pod" if select.container_of(event).get("pod") else "container"
    where = f" of container {name}" if name and subject == "pod" else ""
    edits = select.entries(event, "edits")
    refused_names: set[tuple[str, str]] = set()
    found = []
    for reason in select.entries(event, "denials"):
        rule, message = str(reason.get("rule") or ""), str(reason.get("message", ""))
        refused = {_key(edit) for edit in edits if edit.get("rule") == rule and str(edit.get("name")) in message}
        makes = "would make" if select.entry_is_audited(reason) else "makes"
        ask = f"change what {makes} {'rule ' + rule if rule else 'reassert'} refuse the {subject}{where}: {message}"
        kind = str(reason.get("kind") or "")
        if kind == NODE_PATHS:
            ask = f"change a volume{where}: {message}"
        request, task = ("" if refused else ask), ""
        if any(text in message for text in _ADMINISTRATORS):
            request, task = "", message
        found.append(Item(rule or kind, message, request, refuses=True, task=task, where=where))
        refused_names |= refused
    for reason in select.entries(event, "errors"):
        message = str(reason.get("message", ""))
        found.append(Item(str(reason.get("rule") or ""), message, "", refuses=outcome in _GRAVE, task=message))
    for reached in map(str, event.get("nodePaths") or ()):
        volume, _, path = reached.rpartition(": ")
        ask = f"remove or confirm the volume {volume}{where}, which reaches {path}"
        found.append(Item(NODE_PATHS, f"volume {reached}", ask, refuses=False, where=where))
    for closed, is_made in ((CLOSED, "is made"), (WOULD_CLOSE, "would be made")):
        found += [
            Item(NODE_PATHS, f"{path} {is_made} read-only", "", refuses=False) for path in event.get(closed) or ()
        ]
    for loss in event.get("loses") or ():
        ask = f"find another place for what it loses{where}: {loss}"
        found.append(Item("", str(loss), ask, refuses=False, where=where))
    for edit in edits:
        rule, kind, name = (str(edit.get(key, "")) for key in ("rule", "kind", "name"))
        is_to = "would be" if event.get("mode") == AUDIT or select.entry_is_audited(edit) else "is"
        if not select.overrides(edit):
            found.append(Item(rule, f"{kind} {name} {is_to} added", "", refuses=False))
            continue
        verb, refuses = "remove" if edit.get("after") is None else "replace", _key(edit) in refused_names
        why = f"rule {rule} " + (f"refuses the {subject} otherwise" if refuses else f"{verb}s it")
        place = f" from the {subject} and its image" if kind == "env" else ""
        ask = f"remove {_thing(edit, kind, name)}{where}{place}: {why}"
        found.append(Item(rule, f"{kind} {name} {is_to} {verb}d", ask, refuses, where=where))
    return found


def _key(edit: Event) -> tuple[str, str]:
    return str(edit.get("kind")), str(edit.get("name"))


def _thing(edit: Event, kind: str, name: str) -> str:
    """What the container came with."""
    before = edit.get("before")
    if kind != "mount" or not isinstance(before, list):
        return f"{kind} {name}"
    paths = [str(mount.get("destination", "")) for mount in before if isinstance(mount, dict)]
    return f"the mount at {' and '.join(dict.fromkeys(filter(None, paths))) or name}"


def workload_of(pod: str) -> str:
    """The pod's name without the suffixes that controllers append.

    A pod that a user named in one of these forms counts for the workload of the shorter name.
    """
    for suffix in _SUFFIXES:
        found = suffix.search(pod)
        if found and found.start():
            return pod[: found.start()]
    return pod
