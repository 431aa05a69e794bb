"""A line of the event log has at most 64 KiB, whatever a pod writes, and names what was left out."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core import events as excerpt
from hook.core.container import oci
from hook.core.container.identity import Identity
from hook.core.events import EVENT_ENTRIES, EVENT_ITEMS, EVENT_LINE, line
from hook.core.plan import Plan
from hook.core.policy.model import Policy
from hook.core.reserve.edits import Reason
from hook.core.reserve.listed_annotations import DropAnnotation
from hook.core.reserve.place_device import PlaceDevice
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.core.verdict import Verdict
from unit.support import POD, bind, case, examples, policy

pytestmark = marks.promise(
    "A line is bounded and says what it omits; the log rotates, loses no line, and never stops a container",
    about="Events and metrics",
)

NODE = policy()


class Decided:
    """The parts of a plan."""

    def __init__(self, node: Policy = NODE) -> None:
        self.policy = node
        self.edits: list[Any] = []
        self.denials: list[Reason] = []
        self.errors: list[Reason] = []

    def plan(self) -> Plan:
        made = Plan(self.policy)
        made.edits, made.denials, made.errors = self.edits, self.denials, self.errors
        return made


def set_env(rule: str, name: str, value: str | None, before: list[str | None], origin: str = "") -> SetEnv:
    edit = SetEnv("", name, value, before)
    edit.rule, edit.origin = rule, origin
    return edit


def unset_env(rule: str, name: str, before: list[str | None]) -> SetEnv:
    return set_env(rule, name, None, before)


def logged(decided: Decided, container_id: str = "0a", identity: Identity = POD) -> dict[str, Any]:
    """The event about a plan, as logged."""
    made = decided.plan()
    told = case("hook", container_id, NODE, identity)
    told.inexact_claims = "so that there is an event about nothing else too"
    event = told.event(made, Verdict()) or {}
    text = line(event)
    assert text == excerpt.line(event), "what is not looked at for its length is short"
    assert len(text) < EVENT_LINE
    assert text.isascii()
    assert text.isprintable()
    record: dict[str, Any] = json.loads(text)
    return record


def lookup(record: Any, pointer: str) -> Any:
    """The value at a JSON pointer whose names have no `~`."""
    for part in pointer.split("/")[1:]:
        record = record[int(part)] if isinstance(record, list) else record[part]
    return record


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def test_what_is_short_is_logged_as_it_is() -> None:
    event = {"event": "x", "edits": [{"name": "é" * 128, "before": ["a" * 256, None]}], "applied": True, "n": 1.5}
    assert json.loads(line(event)) == {**event, "node": os.uname().nodename}


@pytest.mark.parametrize(
    ("edit", "pointer", "left"),
    [
        ({"before": ["a"] * 9}, "/edits/0/before", 1),
        ({"after": {str(number): "a" for number in range(17)}}, "/edits/0/after", 1),
        ({"name": "é" * 200}, "/edits/0/name", 400),
        ({"name": "a" * 300}, "/edits/0/name", 300),
    ],
)
def test_the_only_thing_that_is_too_large_is_shortened(edit: dict[str, Any], pointer: str, left: int) -> None:
    record = json.loads(line({"event": "x", "edits": [edit]}))
    (entry,) = record.get("truncated") or [{"at": pointer, "bytes": record["omitted"][pointer]}]
    assert (entry["at"], entry["bytes"]) == (pointer, left)
    assert len(lookup(record, pointer)) < len(lookup({"edits": [edit]}, pointer))


def test_an_event_that_was_read_from_a_line_is_that_line_again() -> None:
    text = line({"event": "x", "edits": [{"name": "a" * 300, "before": ["a"] * 9}]})
    assert line({key: value for key, value in json.loads(text).items() if key != "node"}) == text
    foreign = {"event": "x", "truncated": [{"at": "/event", "bytes": 300, "sha256": "0" * 16}]}
    assert "truncated" not in json.loads(line(foreign)), "of nothing that was cut"


def test_long_string_is_cut_and_measured_where_it_stands() -> None:
    value, unit = "v" * 100_000, "ü" * 200
    decided = Decided()
    decided.edits = [set_env("r", "A", value, ["short", value[1:] + "w", None]), DropAnnotation("r", unit, "x")]
    record = logged(decided)
    assert record["edits"][0]["before"] == [{"bytes": 5}, {"bytes": 100_000}, None]
    assert record["edits"][0]["after"] == "v" * 256 + "…"
    assert record["edits"][1]["name"] == "ü" * 128 + "…"
    assert record["truncated"] == [
        {"at": "/edits/0/after", "bytes": 100_000, "sha256": sha(value)},
        {"at": "/edits/1/name", "bytes": 400, "sha256": sha(unit)},
    ]
    assert "omitted" not in record


def test_id_and_names_of_a_container_are_cut() -> None:
    identity = Identity("podman", False, namespace="n" * 300, pod="p" * 300, container="c" * 300, image="i" * 300)
    record = logged(Decided(), "0" * 300, identity)
    cut = {entry["at"]: entry["bytes"] for entry in record["truncated"]}
    assert cut == dict.fromkeys(["/id", *(f"/container/{k}" for k in ("namespace", "pod", "container", "image"))], 300)


def test_two_thousand_absent_names_of_a_kilobyte() -> None:
    value = "\x1b" * 1000
    decided = Decided()
    decided.edits = [set_env("r", f"N_{number}", value, ["x"]) for number in range(2000)]
    decided.denials = [Reason(edit.rule, "env", edit.conflict()) for edit in decided.edits]
    record = logged(decided)
    for key in ("edits", "denials"):
        assert 10 < len(record[key]) <= EVENT_ENTRIES
        assert len(record[key]) + record["omitted"][f"/{key}"] == 2000
    for cut in record["truncated"]:
        assert (cut["bytes"], cut["sha256"]) == (1000, sha(value))
        assert lookup(record, cut["at"]).endswith("…")


@marks.hole("One start wrote 90 MB into the event log", since="0.1.0", fixed="0.2.0", severity="low")
@pytest.mark.native
@pytest.mark.slow
def test_ninety_megabytes() -> None:
    """A config.json of 32 MiB could have become 90 MB of log: control characters, in several members of an event."""
    huge = "\x01" * 15_000_000
    decided = Decided()
    decided.edits = [set_env("r", "A", "new", [huge]), DropAnnotation("r", "\x02" * 1_000_000, huge)]
    decided.edits.append(
        PlaceMount(
            "r", "/m", None, companions=frozenset(), before=oci.mounts([bind(f"/m/{n}", "/s") for n in range(300_000)])
        )
    )
    decided.errors = [Reason("r", "env", f"cannot read {huge}")]
    began = time.process_time()
    record = logged(decided)
    assert time.process_time() - began < 2, "bounded work: each string is hashed once"
    assert {cut["bytes"] for cut in record["truncated"]} == {1_000_000, 15_000_012}
    assert record["edits"][1]["before"] == {"bytes": 15_000_000}
    assert record["omitted"] == {"/edits/2/before": 300_000 - EVENT_ITEMS}


def test_a_long_list_of_edits_leaves_room_for_the_reason_of_a_refusal() -> None:
    decided = Decided()
    decided.edits = [unset_env("r", "\x01" * 300, ["\x02" * 300] * EVENT_ITEMS) for _ in range(EVENT_ENTRIES)]
    decided.denials = [Reason("r", "env", "why")]
    record = logged(decided, "\x03" * 300)
    assert record["denials"] == [{"rule": "r", "message": "why"}]
    assert len(record["edits"]) + record["omitted"]["/edits"] == EVENT_ENTRIES
    assert record["id"].startswith("\x03")


def test_event_of_the_plugin_is_bounded_too() -> None:
    record = json.loads(line({"event": "nri.violation", "message": "m" * 1_000_000, "more": ["x" * 300] * 10_000}))
    assert record["message"] == "m" * 256 + "…"
    assert record["omitted"]["/more"] == 10_000 - 64


def test_deeply_nested_member_of_a_device_is_left_out() -> None:
    nested: Any = 1
    for _ in range(900):
        nested = {"deep": [nested]}
    decided = Decided()
    there = oci.Device({"path": "/dev/x", "vendor": nested})
    decided.edits = [
        PlaceDevice("r", "/dev/x", oci.Device({"path": "/dev/x"}), access="rwm", before=[there], origin="")
    ]
    record = logged(decided)
    assert record["edits"][0]["before"][0]["path"] == "/dev/x"
    assert any(pointer.startswith("/edits/0/before/0/vendor") for pointer in record["omitted"])


TEXT = st.one_of(
    st.text(st.characters(), max_size=40),
    st.builds(lambda c, n: c * n, st.characters(), st.integers(0, 3000)),
)
VALUES = st.lists(st.none() | TEXT, max_size=12)
MOUNTS = st.lists(st.builds(oci.Mount, st.fixed_dictionaries({"destination": TEXT, "source": TEXT})), max_size=12)
OPTIONS = st.lists(TEXT, max_size=12)
EDITS = st.one_of(
    st.builds(set_env, TEXT, TEXT, TEXT, VALUES, TEXT),
    st.builds(unset_env, TEXT, TEXT, VALUES),
    st.builds(DropAnnotation, TEXT, TEXT, TEXT),
    st.builds(
        PlaceMount,
        TEXT,
        TEXT,
        st.none() | st.builds(oci.Mount, st.fixed_dictionaries({"source": TEXT, "options": OPTIONS}), st.just("/m")),
        companions=st.just(frozenset()),
        before=MOUNTS,
        origin=TEXT,
    ),
)
REASONS = st.lists(st.builds(Reason, TEXT, TEXT, TEXT), max_size=8)


@examples(300)
@given(
    st.lists(EDITS, max_size=8), REASONS, REASONS, st.lists(TEXT, min_size=7, max_size=7), st.sampled_from([1, 10, 50])
)
def test_any_event_is_one_bounded_line_that_accounts_for_everything(
    edits: list[Any], denials: list[Reason], errors: list[Reason], names: list[str], times: int
) -> None:
    decided = Decided(policy())
    decided.edits, decided.denials, decided.errors = edits * times, denials * times, errors * times
    decided.policy.warning = names[6]
    record = logged(
        decided,
        names[0],
        Identity("e", True, namespace=names[1], pod=names[2], uid=names[3], container=names[4], image=names[5]),
    )
    omitted = record.get("omitted", {})
    for key, things in (("edits", decided.edits), ("denials", decided.denials), ("errors", decided.errors)):
        assert len(record[key]) + omitted.get(f"/{key}", 0) == len(things)
        assert bool(record[key]) == bool(things)
    for cut in record.get("truncated", []):
        kept = lookup(record, cut["at"])
        assert kept.endswith("…")
        assert len(kept[:-1].encode("utf-8", "surrogatepass")) < cut["bytes"]
        if cut["at"].startswith("/edits/") and cut["at"].endswith("/name"):
            name = decided.edits[int(cut["at"].split("/")[2])].name
            assert (cut["bytes"], cut["sha256"]) == measured(name)
            assert name.startswith(kept[:-1])


def measured(text: str) -> tuple[int, str]:
    """Length and hash, computed without hook.core.base.text."""
    return len(text.encode("utf-8", "surrogatepass")), sha(text)
