"""Which handlers are wired, minute by minute: what is kept for the metrics, and what the event log gets."""

from __future__ import annotations

import json
from pathlib import Path

from hook import __version__
from hook.core.policy.store import STORE
from hook.node import wired
from hook.node.change import journal
from hook.node.change.record import OwnerRecord, Record
from hook.node.services import PLUGIN
from unit.ownmachine import Machine
from unit.support import called

EVENTS = Path("/var/log/reassert/events.jsonl")
CRUN = ("crio", "crun")


def said() -> list[str]:
    """Of each event since the last call, its kind."""
    if not EVENTS.exists():
        return []
    lines = [json.loads(line) for line in EVENTS.read_text().splitlines()]
    EVENTS.unlink()
    assert all((line["engine"], line["handler"], line["adapter"]) == (*CRUN, "node") for line in lines)
    return [f"{line['event']} {line['level']}" for line in lines]


def test_a_change_is_an_event_and_what_is_not_known_is_no_sample(machine: Machine) -> None:
    machine.crio()
    machine.program("crun", ":")
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["hook"])})
    hooks = machine.file(
        "/etc/crio/crio.conf.d/99-reassert.conf", 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\n'
    )
    with machine.crio_daemon() as load:
        wired.record(record)
        assert (wired.last_look(), said()) == ({CRUN: 1}, [])
        hooks.unlink()
        load()
        with journal.locked():  # an install has written its files, and the engine was not restarted yet
            wired.record(record)
        assert (wired.last_look(), said(), wired.gaps()) == ({CRUN: 1}, [], [])
        for _ in range(2):
            wired.record(record)
            assert wired.last_look() == {CRUN: 0}
        assert said() == ["handler.unwired error"]
        Path("/var/run/crio/crio.sock").rename("/var/run/crio/away")
        wired.record(record)
        assert (wired.last_look(), said()) == ({}, [])
        Path("/var/run/crio/away").rename("/var/run/crio/crio.sock")
        machine.file(str(hooks), 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\n')
        load()
        wired.record(record)
        assert (wired.last_look(), said()) == ({CRUN: 1}, ["handler.wired info"])
    [[*handler, start, end]] = wired.gaps()
    assert (tuple(handler), 0 < start <= end) == (CRUN, True)
    looked = Path(STORE, wired.FILE)
    when, *rest = json.loads(looked.read_text())
    looked.write_text(json.dumps([when - wired.SECONDS - 1, *rest]))
    assert wired.last_look() == {}
    wired.forget()
    assert (wired.last_look(), len(wired.gaps())) == ({}, 1), (
        "audit needs to know when containers came without reassert"
    )


def test_a_gap_begins_at_the_last_look_at_which_the_engine_told(machine: Machine) -> None:
    """Not at a later one at which it did not answer: it may have been unwired by then."""
    machine.crio()
    machine.program("crun", ":")
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["hook"])})
    hooks = machine.file(
        "/etc/crio/crio.conf.d/99-reassert.conf", 'crio.runtime.hooks_dir = ["/etc/reassert/hooks.d/crio"]\n'
    )
    looked = Path(STORE, wired.FILE)
    with machine.crio_daemon() as load:
        wired.record(record)
        when, *rest = json.loads(looked.read_text())
        looked.write_text(json.dumps([when - 180, *rest]))
        Path("/var/run/crio/crio.sock").rename("/var/run/crio/away")
        for minutes in (2, 1):
            wired.record(record)
            _, *rest = json.loads(looked.read_text())
            looked.write_text(json.dumps([when - 60 * minutes, *rest]))
        Path("/var/run/crio/away").rename("/var/run/crio/crio.sock")
        hooks.unlink()
        load()
        wired.record(record)
    assert wired.gaps() == [[*CRUN, when - 180, 0]]
    looked.write_text(json.dumps([when, {"crio": {"crun": 1}}, ["crio"], []]))  # of an earlier version
    assert wired.last_look() == {}


def test_a_program_that_was_replaced_is_an_event_once(machine: Machine) -> None:
    """As a package's upgrade does, which runs no `node install`. What the last look saw was another build."""
    machine.crio()
    machine.unit("crio.service", 0)
    record = Record("/nowhere", {"crio": OwnerRecord(adapters=["hook"])})
    wired.forget()
    wired.record(record)
    assert not EVENTS.exists()
    looked = Path(STORE, wired.FILE)
    *rest, _ = json.loads(looked.read_text())
    looked.write_text(json.dumps([*rest, ["0.3.0", "/usr/lib/reassert/other/reassert"]]))
    for _ in range(2):
        wired.record(record)
    [event] = [json.loads(line) for line in EVENTS.read_text().splitlines()]
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
        wired.record(Record("/nowhere", {"crio": elsewhere}))
        assert wired.last_look() == {CRUN: 1}
        machine.unit(PLUGIN)
        ours = Record("/nowhere", {"crio": OwnerRecord(adapters=["nri", "hook"])})
        wired.record(ours)
        assert wired.last_look() == {CRUN: 1}
        found = Path("/usr/local/sbin/systemctl").read_text()
        machine.program("systemctl", f'case "$*" in *{PLUGIN}*) echo timed out >&2; exit 1 ;; esac\n{found}')
        wired.record(ours)  # an alarm would be false
        assert (wired.last_look(), said()) == ({}, [])
        machine.file("/usr/local/sbin/systemctl", found, 0o755)
        Path(f"/run/units/{PLUGIN}").unlink()
        wired.record(ours)
        assert (wired.last_look(), said()) == ({CRUN: 0}, ["handler.unwired error"])


def test_the_command_prints_nothing_where_nothing_is_wired(machine: Machine) -> None:
    done = called("node", "status", "--record")
    assert (done.returncode, done.stdout, wired.last_look()) == (0, "", {})
