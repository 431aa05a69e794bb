"""Which handlers are wired, minute by minute: what is kept for the metrics, and what the event log gets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.core.policy.store import STORE
from hook.node import kept, wired
from hook.node.change import journal
from hook.node.change.record import OwnerRecord, Record
from hook.node.services import PLUGIN
from hook.ops.health.record import record as look_again
from unit.ownmachine import Machine
from unit.support import called, document

pytestmark = [
    marks.promise(
        "Install, upgrade and uninstall, also of the package, and each command of break-glass.md leave an event"
    ),
    marks.promise(
        "`status` and `install` go by what the engine has loaded, and a timer logs each handler that stops being wired"
    ),
]

EVENTS = Path("/var/log/reassert/events.jsonl")
CRUN = ("crio", "crun")


def events(kind: str) -> list[dict[str, Any]]:
    """The events since the last call whose name begins so."""
    if not EVENTS.exists():
        return []
    lines = [json.loads(line) for line in EVENTS.read_text().splitlines()]
    EVENTS.unlink()
    return [line for line in lines if line["event"].startswith(kind)]


def said() -> list[str]:
    """Of each event about a handler since the last call, its kind."""
    lines = events("handler.")
    assert all((line["engine"], line["handler"], line["adapter"]) == (*CRUN, "node") for line in lines)
    return [f"{line['event']} {line['level']}" for line in lines]


def wired_crio(machine: Machine) -> tuple[Record, Path]:
    """CRI-O with the hook: the record of the install, and the file that makes CRI-O call it."""
    machine.crio()
    machine.program("crun", ":")
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["hook"])})
    hooks = machine.file(
        "/etc/crio/crio.conf.d/99-reassert.conf", 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\n'
    )
    return record, hooks


def samples() -> dict[tuple[str, str], int]:
    return kept.read().wiring.samples()


def gaps() -> list[kept.Gap]:
    return kept.read().wiring.gaps


def looked(seconds: int) -> None:
    """The last look was so many seconds earlier."""

    def change(now: kept.Kept) -> None:
        now.wiring.when -= seconds

    kept.change(change)


def test_a_change_is_an_event_and_what_is_not_known_is_no_sample(machine: Machine) -> None:
    record, hooks = wired_crio(machine)
    with machine.crio_daemon() as load:
        look_again(record)
        assert (samples(), said()) == ({CRUN: 1}, [])
        hooks.unlink()
        load()
        with journal.locked():  # an install has written its files, and the engine was not restarted yet
            look_again(record)
        assert (samples(), said(), gaps()) == ({CRUN: 1}, [], [])
        for _ in range(2):
            look_again(record)
            assert samples() == {CRUN: 0}
        assert said() == ["handler.unwired error"]
        Path("/var/run/crio/crio.sock").rename("/var/run/crio/away")
        look_again(record)
        assert (samples(), said()) == ({}, [])
        Path("/var/run/crio/away").rename("/var/run/crio/crio.sock")
        machine.file(str(hooks), 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\n')
        load()
        look_again(record)
        assert (samples(), said()) == ({CRUN: 1}, ["handler.wired info"])
    [[*handler, start, end]] = gaps()
    assert (tuple(handler), 0 < start <= end) == (CRUN, True)
    looked(kept.WIRING_SECONDS + 1)
    assert samples() == {}
    wired.begin(Record("/nowhere", {}))
    assert (samples(), len(gaps())) == ({}, 1), "audit needs to know when containers came without reassert"


def test_what_is_unwired_before_the_first_look_after_an_install_is_seen(machine: Machine) -> None:
    """As by configuration management that writes the engine's files again right after reassert's own install."""
    record, hooks = wired_crio(machine)
    with machine.crio_daemon() as load:
        wired.begin(record)
        assert samples() == {CRUN: 1}
        hooks.unlink()
        load()
        look_again(record)
    assert (samples(), said()) == ({CRUN: 0}, ["handler.unwired error"])
    assert [gap[:2] for gap in gaps()] == [CRUN]


def test_a_handler_that_comes_later_counts_unless_the_install_left_it_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"runc": 1, "vm": kept.LEFT_OUT}
    for name in ("look", "values"):
        monkeypatch.setattr(f"hook.node.wired.{name}", lambda *_: dict(found))
    machine.crio()
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["runtime"])})
    wired.begin(record)
    assert samples() == {("crio", "runc"): 1}, "vm was left out by name"
    found["fast"] = 0
    for _ in range(2):
        look_again(record)
        assert samples() == {("crio", "runc"): 1, ("crio", "fast"): 0}
    [event] = events("handler.")
    assert (event["event"], event["handler"]) == ("handler.unwired", "fast")
    assert "is new and not wired" in event["message"]
    found.update(vm=1, fast=1)
    look_again(record)
    assert samples() == {("crio", each): 1 for each in found}
    found["vm"] = 0
    look_again(record)
    assert samples()["crio", "vm"] == 0, "it was wired since"


def test_a_gap_begins_at_the_last_look_at_which_the_engine_told(machine: Machine) -> None:
    """Not at a later one at which it did not answer: it may have been unwired by then."""
    record, hooks = wired_crio(machine)
    with machine.crio_daemon() as load:
        look_again(record)
        when = kept.read().wiring.when
        looked(180)
        Path("/var/run/crio/crio.sock").rename("/var/run/crio/away")
        for _ in range(2):
            look_again(record)
            looked(60)
        Path("/var/run/crio/away").rename("/var/run/crio/crio.sock")
        hooks.unlink()
        load()
        look_again(record)
    assert [(*gap[:2], gap.until) for gap in gaps()] == [(*CRUN, 0)]
    assert when - 181 <= gaps()[0].since <= when - 180


def test_what_0_3_has_kept_is_read_and_then_kept_in_one_file(machine: Machine) -> None:
    """Its metrics count on, audit knows the gaps, `verify --again` accepts the same, and no container is told twice."""
    store, now = Path(STORE), int(time.time())
    store.mkdir()
    gap = ["crio", "crun", now - 9, 0]
    old = {
        "wired.json": [now, {"crio": {"crun": 1, "runc": 0}}, ["docker"], [gap], ["0.3.0", "/p"]],
        "drift.json": [now, 2, 1, ["a", "b"]],
        "last-verify.json": {"crio": [now, 1, ["rule/*"]], "docker": [now, 0]},
        "events-position.json": [1, 2, 3],
    }
    for name, content in old.items():
        (store / name).write_text(json.dumps(content))
    found = kept.read()
    assert found.wiring.samples() == {CRUN: 1, ("crio", "runc"): 0}
    assert (found.wiring.gaps, found.wiring.unknown) == ([kept.Gap(*CRUN, now - 9, 0)], {"docker": now})
    assert found.audited == kept.Audited(told=["a", "b"])
    assert (found.verified["crio"].status, found.verified["crio"].accepted) == (1, ["rule/*"])
    assert (found.verified["docker"].accepted, found.place) == ([], (1, 2, 3))
    kept.change(lambda _: None)
    assert [path.name for path in store.iterdir()] == [kept.FILE]
    assert kept.read() == found


@pytest.mark.parametrize("content", ["", "[]", '{"wiring": 1, "verified": {"crio": {}}, "audited": [], "place": [1]}'])
def test_what_cannot_be_read_is_as_on_a_new_node(machine: Machine, content: str) -> None:
    machine.file(f"{STORE}/{kept.FILE}", content)
    assert kept.read() == kept.Kept()
    kept.change(lambda now: setattr(now, "place", (1, 2, 3)))
    assert kept.read() == kept.Kept(place=(1, 2, 3))
    Path(STORE, kept.FILE).chmod(0o666)
    assert kept.read() == kept.Kept(), "another user can have written it"


def test_a_program_that_was_replaced_is_an_event_once(machine: Machine) -> None:
    """As a package's upgrade does, which runs no `install`. What the last look saw was another build."""
    machine.crio()
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["hook"])})
    wired.begin(record)
    look_again(record)
    assert not events("node.upgrade")
    kept.change(lambda now: setattr(now.wiring, "program", ["0.3.0", "/usr/lib/reassert/other/reassert"]))
    for _ in range(2):
        look_again(record)
    [event] = events("node.upgrade")
    assert {name: event[name] for name in ("event", "engine", "adapters", "version", "before")} == {
        "event": "node.upgrade",
        "engine": "crio",
        "adapters": ["hook"],
        "version": __version__,
        "before": "0.3.0",
    }


def test_the_plugin_counts_where_it_is_a_service_of_the_node(machine: Machine) -> None:
    machine.crio()
    machine.program("crun", ":")
    machine.unit("crio.service", 0)
    text = 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\ncrio.nri.enable_nri = true\n'
    machine.file("/etc/crio/crio.conf.d/99-reassert.conf", text)
    elsewhere = OwnerRecord(adapters=["nri", "hook"], notes={"unit": False})
    with machine.crio_daemon():
        look_again(Record("/nowhere", {"crio": elsewhere}))
        assert samples() == {CRUN: 1}
        machine.unit(PLUGIN)
        ours = Record("/nowhere", {"crio": OwnerRecord(adapters=["nri", "hook"])})
        look_again(ours)
        assert samples() == {CRUN: 1}
        found = Path("/usr/local/sbin/systemctl").read_text()
        machine.program("systemctl", f'case "$*" in *{PLUGIN}*) echo timed out >&2; exit 1 ;; esac\n{found}')
        look_again(ours)  # an alarm would be false
        assert (samples(), said()) == ({}, [])
        machine.file("/usr/local/sbin/systemctl", found, 0o755)
        Path(f"/run/units/{PLUGIN}").unlink()
        look_again(ours)
        assert (samples(), said()) == ({CRUN: 0}, ["handler.unwired error"])


def test_the_command_prints_nothing_where_nothing_is_wired(machine: Machine) -> None:
    done = called("status", "--record")
    assert (done.returncode, done.stdout, samples()) == (0, "", {})


def test_an_error_that_is_new_is_an_event_and_that_it_is_gone_too(machine: Machine) -> None:
    """Of a handler and a container there are events that say more."""
    machine.boot()
    record, _ = wired_crio(machine)
    machine.file("/etc/reassert/policy.yaml", document({"name": "r", "env": [{"name": "A", "value": "1"}]}))
    unit = "reassert-trust.path"
    machine.file(f"/etc/systemd/system/paths.target.wants/{unit}")
    with machine.crio_daemon():
        look_again(record)
        events("")
        machine.file(f"/run/units/{unit}.failed")
        for _ in range(2):
            look_again(record)
        [event] = events("node.")
        assert (event["event"], event["level"], event["part"]) == ("node.problem", "error", "trust")
        assert (event["remedy"], unit in event["message"]) == (f"systemctl restart {unit}", True)
        assert [each.part for each in kept.read().findings if each.part == "trust"] == ["trust"]
        Path(f"/run/units/{unit}.failed").unlink()
        for _ in range(2):
            look_again(record)
        [event] = events("node.")
        assert (event["event"], event["part"]) == ("node.solved", "trust")
