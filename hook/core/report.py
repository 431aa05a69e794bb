"""The event about a container: what each of its fields is made of, and which name it gets.

Each adapter's event has the same fields (docs/events.md describes them). `hook.core.events` writes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from hook.core.audited import AuditedRules
from hook.core.base.system import timestamp
from hook.core.container.identity import Identity
from hook.core.events import (
    DENIED,
    DRIFTED,
    EDITED,
    ERROR,
    EVENT_ENTRIES,
    HELD,
    INEXACT,
    NODE_PATHS,
    REMOUNTABLE,
    WOULD_DENY,
)
from hook.core.facts import Container
from hook.core.policy.model import AUDIT, FAIL, Policy
from hook.core.reserve import losses
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.plan import Plan
from hook.core.verdict import CONFIG, CONTAINER, Verdict

Event: TypeAlias = dict[str, Any]

INFO, WARNING, FATAL = "info", "warning", "error"
"""Levels: a usual event, one to look at, and one about a container that does not start."""

HARMLESS = (
    *("timestamp", "event", "level", "adapter", "id", "container", "mode", "policy", "durationMs", "probe", "start"),
    *("cold", "applied", "verified", "asked", "omitted", "tried"),
)
"""The fields that quote nothing of a container but names: a bug report has them (hook.ops.health.bundle)."""

_TRIED = "tried"
"""A member of an event: some of its entries have `mode: Audit` and say what a rule in Audit mode would have done."""


class _Adapter(Protocol):
    """What an event tells of an adapter (hook.core.decide.Adapter)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def started(self) -> Mapping[str, str]:
        """Whether the start is warm or cold."""

    @property
    def store(self) -> str:
        """The directory that has the key of the hashes in events."""


class Subject(Protocol):
    """Whom an event is about: one container at one adapter (hook.core.decide.Case)."""

    container_id: str
    began: tuple[int, int]
    policy: Policy | None
    identity: Identity | None
    inexact_claims: str
    audited_rules: AuditedRules | None
    container: Container

    @property
    def adapter(self) -> _Adapter:
        """The adapter."""

    def milliseconds(self) -> float:
        """How long the adapter took."""

    def is_probe(self) -> bool:
        """Whether `verify` started the container."""


def of_plan(subject: Subject, plan: Plan, done: Verdict) -> Event | None:
    """The event about a plan and what the adapter did about it; None if there is nothing to tell."""
    return _of_plan(_head(subject), subject, plan, done) if _is_told(subject, plan, done) else None


def draft_of_plan(subject: Subject, plan: Plan, done: Verdict) -> Event | None:
    """The same for a later adapter, which completes it (`Verdict.draft`) and knows the rest itself."""
    head = {"began": subject.began[0], "adapter": subject.adapter.name, **subject.adapter.started}
    return _of_plan(head, subject, plan, done) if _is_told(subject, plan, done) else None


def of_failure(subject: Subject, message: str, *, refuses: bool, ignored: bool, starts: bool) -> Event:
    """The event about a container about which nothing was decided.

    `refuses`: the container caused it, so that Enforce mode refuses it whatever `failurePolicy` is. `ignored`:
    `failurePolicy` lets it start. `starts`: whether it starts.
    """
    audit = subject.policy is not None and subject.policy.mode == AUDIT
    names = (
        (audit and not ignored, WOULD_DENY),
        (refuses, DENIED),
        (True, ERROR),
    )
    event = _head(subject)
    event["event"] = next(name for holds, name in names if holds)
    event["level"] = WARNING if starts else FATAL
    event["applied"] = False
    event["denials" if refuses else "errors"] = [Reason("", "", message).describe()]
    return event


def of_drift(
    policy: Policy, container_id: str, names: Mapping[str, str], differences: Sequence[Mapping[str, object]]
) -> Event:
    """The event about a running container that differs from the policy. `names`: those of its pod that are known."""
    return {
        "timestamp": timestamp(time.time_ns()),
        "adapter": "audit",
        "event": DRIFTED,
        "level": WARNING,
        "id": container_id,
        "container": {key: name for key, name in names.items() if name},
        "mode": policy.mode,
        "policy": {"path": policy.path, "sha256": policy.fingerprint},
        "message": "; ".join(f"{each['message']} ({each['why']})" for each in differences[:3]),
        "differences": [*differences],
    }


def _head(subject: Subject) -> Event:
    """The fields of every event about a container that starts."""
    policy = subject.policy
    event: Event = {
        "timestamp": timestamp(subject.began[0]),
        "adapter": subject.adapter.name,
        "id": subject.container_id,
        "container": subject.identity.as_dict() if subject.identity else {},
        "mode": policy.mode if policy else "",
        "policy": {"path": policy.path, "sha256": policy.fingerprint} if policy else {},
        "durationMs": subject.milliseconds(),
    }
    if subject.is_probe():
        event["probe"] = True
    event.update(subject.adapter.started)
    return event


def _is_told(subject: Subject, plan: Plan, done: Verdict) -> bool:
    """Whether there was anything to do or to report."""
    made = plan.edits if done.edits is None else done.edits
    has_findings = done.draft or done.denials or done.remountable or done.node_paths or done.read_only
    known = subject.audited_rules or subject.inexact_claims or plan.policy.warning or plan.node_paths
    return bool(made or plan.denials or plan.errors or has_findings or known)


def _of_plan(event: Event, subject: Subject, plan: Plan, done: Verdict) -> Event:
    draft, audited, store = done.draft, subject.audited_rules, subject.adapter.store
    made = plan.edits if done.edits is None else done.edits
    if subject.inexact_claims:
        event["claims"] = subject.inexact_claims
    edits: Sequence[Any] = made if draft is None else _completed(event, draft, made)
    refuses = bool(plan.reasons() or done.denials)
    acts = bool(draft and draft.get("applied") is not False) if plan.audit_only() else not refuses
    event["event"] = event["level"] = ""  # named below, when all else is known
    event["applied"] = acts and done.verified in (CONFIG, CONTAINER)
    event["verified"] = done.verified if acts and (event["applied"] or edits) else ""
    if acts and edits and not event["applied"]:
        event["asked"] = True
    for key, entries in (("edits", edits), ("denials", [*plan.denials, *done.denials]), ("errors", plan.errors)):
        event[key] = [_described(entry, store) for entry in entries[:EVENT_ENTRIES]]
        _count_omitted(event, key, len(entries))
    for edit in event["edits"]:
        edit["applied"] = event["applied"]
    if done.remountable:
        event["remountable"] = done.remountable[:EVENT_ENTRIES]
    node_paths = done.node_paths or plan.node_paths
    if node_paths:
        event["nodePaths"] = [*node_paths[:EVENT_ENTRIES]]
    if done.read_only:
        closes = plan.policy.closes and not plan.audit_only()
        event["madeReadOnly" if closes else "wouldMakeReadOnly"] = [*done.read_only[:EVENT_ENTRIES]]
    if plan.policy.warning:
        event["warning"] = plan.policy.warning
    whole = (audited and audited.plan) or plan
    if whole.mounts and "loses" not in event and not refuses:
        loses = [*done.hides, *losses.losses(whole, subject.container.start.env)]
        event.update({"loses": loses} if loses else {})
    if audited or _TRIED in (draft or ()):
        _add_audited(event, audited, draft, made=bool(made), store=store)
    would_refuse = event["denials"] or (event["errors"] and plan.policy.failure_policy == FAIL)
    names = (
        (refuses and plan.audit_only(), WOULD_DENY, WARNING),
        (refuses, DENIED, FATAL),
        (plan.errors, ERROR, WARNING),
        (done.remountable and not edits, REMOUNTABLE, WARNING),
        (would_refuse, WOULD_DENY, WARNING),  # by now, only what is on trial
        (edits, EDITED, INFO),
        (plan.policy.warning and not event["edits"], HELD, WARNING),
        (node_paths and not plan.policy.warning, NODE_PATHS, WARNING),
        (done.read_only and not plan.policy.warning, NODE_PATHS, INFO),
        (event["edits"], EDITED, INFO),
        (subject.inexact_claims, INEXACT, INFO),
        (True, HELD, WARNING),
    )
    event["event"], event["level"] = next((name, level) for holds, name, level in names if holds)
    return event


def _described(entry: Edit | Reason | Event, store: str) -> Event:
    return entry if isinstance(entry, dict) else entry.describe(store) if isinstance(entry, Edit) else entry.describe()


def _count_omitted(event: Event, key: str, entries: int) -> None:
    if entries > EVENT_ENTRIES:
        omitted = event.setdefault("omitted", {})  # a draft already has this member
        omitted["/" + key] = omitted.get("/" + key, 0) + entries - EVENT_ENTRIES


def _completed(event: Event, draft: Event, edits: Sequence[Edit]) -> list[Any]:
    """Give an event what its draft has. Returns the edits of both, those of the draft first, as dictionaries."""
    earlier = draft.get("edits")
    drafted = [edit for edit in earlier if isinstance(edit, dict)] if isinstance(earlier, list) else []
    names = {(edit.get("kind"), edit.get("name")) for edit in drafted if "mode" not in edit}
    event.update((key, draft[key]) for key in ("adapter", "loses", "truncated", "omitted") if key in draft)
    if isinstance(began := draft.get("began"), int):
        event["timestamp"] = timestamp(began)
    if draft.get("start") == "cold":  # a container's start is warm if all of its calls were
        event.update((key, draft[key]) for key in ("start", "cold") if key in draft)
    return drafted + [edit for edit in edits if (edit.kind, edit.name) not in names]


# -- what is on trial


def _add_audited(event: Event, audited: AuditedRules | None, draft: Event | None, *, made: bool, store: str) -> None:
    """Add to an event what the tried rules would have done, each entry with `mode: Audit`.

    `draft`: the event of an earlier adapter, which saw the container before its env and mounts were corrected. `made`:
    whether this adapter made edits of enforced rules; the event may have no room for them behind those of the draft.
    """
    event[_TRIED] = True
    for edit in event["edits"]:
        edit["applied"] = edit["applied"] and edit.get("mode") != AUDIT  # these include the edits of a draft
    known = {(edit.get("kind"), edit.get("name")) for edit in event["edits"] if edit.get("mode") == AUDIT}
    cut = (draft or {}).get("omitted") or {}  # the draft already counted what it cut from this list
    own = [e for e in audited.edits if (e.kind, e.name) not in known] if audited and "/edits" not in cut else []
    _add(event, "edits", [], [{**edit.describe(store), "applied": False} for edit in own])
    for key, reasons in (("denials", audited.denials), ("errors", audited.errors)) if audited else ():
        _add(event, key, _drafted(draft, key), [reason.describe() for reason in reasons if "/" + key not in cut])
    enforced = [edit for edit in event["edits"] if edit.get("mode") != AUDIT]
    if not enforced and not made:
        event.update(applied=False, verified="")
        event.pop("asked", None)


def _drafted(draft: Event | None, key: str) -> list[Any]:
    entries = (draft or {}).get(key)
    return [e for e in entries if isinstance(e, dict) and e.get("mode") == AUDIT] if isinstance(entries, list) else []


def _add(event: Event, key: str, drafted: list[Any], own: list[Event]) -> None:
    """Add entries to a list of the event. Those of a draft come first, since its `truncated` has their indices.

    None of them takes the place of what is not only tried, such as why the container was refused.
    """
    for entry in own:
        entry["mode"] = AUDIT
    added = [entry for entry in own if not any(_is_same(entry, each) for each in drafted)]
    first = drafted[: max(EVENT_ENTRIES - len(event[key]), 0)]
    entries = [*first, *event[key], *drafted[len(first) :], *added]
    if len(first) < len(drafted) and "truncated" in event:
        gone = {f"/{key}/{number}/message" for number in range(len(first), len(drafted))}
        event["truncated"] = [cut for cut in event["truncated"] if cut.get("at") not in gone]
    event[key] = entries[:EVENT_ENTRIES]
    _count_omitted(event, key, len(entries))


def _is_same(entry: Event, drafted: Event) -> bool:
    """Whether a draft has an entry, perhaps with a message that was cut."""
    cut = str(drafted.get("message", ""))
    whole = str(entry.get("message", ""))
    return {**entry, "message": cut} == drafted and (cut == whole or (cut[-1:] == "…" and whole.startswith(cut[:-1])))
