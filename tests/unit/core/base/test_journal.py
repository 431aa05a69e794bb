"""Events in systemd's journal: fields that no pod can forge, and a start that no journal delays."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core import events
from hook.core.base import journal
from hook.core.base.errors import Refused, Unacceptable
from hook.core.base.logfile import try_to_append
from hook.entry.caller import Caller, Options
from unit.ops.events.support import DENIED, NVIDIA, event
from unit.ownmachine import Machine
from unit.support import case, leased, policy

pytestmark = marks.promise("No text of a pod controls a terminal, a browser, a shell or a field of the journal")

FORGED = "x\nREASSERT_EVENT=container.edited\n_UID=0\nMESSAGE\n\x01"


@pytest.fixture
def journald(machine: Machine) -> Iterator[socket.socket]:
    """A socket in the place of journald's."""
    Path(journal.JOURNAL_SOCKET).parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(journal.JOURNAL_SOCKET)
        listening.settimeout(5)
        yield listening


def received(data: bytes) -> list[tuple[str, str]]:
    """The fields of an entry in the native protocol; all have their length before them."""
    found = []
    while data:
        name, _, rest = data.partition(b"\n")
        size = int.from_bytes(rest[:8], "little")
        found.append((name.decode(), rest[8 : 8 + size].decode()))
        assert rest[8 + size : 9 + size] == b"\n"
        data = rest[9 + size :]
    return found


def send(path: Path, **more: Any) -> None:
    try_to_append(str(path), json.dumps(event("denied", "web-0", 1, level="error", **more)), journal=True)


def test_an_event_has_its_own_fields_and_stays_in_the_file(journald: socket.socket, tmp_path: Path) -> None:
    send(tmp_path / "l", edits=[NVIDIA], denials=[DENIED], start="cold", cold="absent", probe=True)
    (line,) = (tmp_path / "l").read_text().splitlines()
    assert received(journald.recv(1 << 18)) == [
        ("MESSAGE", f"container.denied team-a/web-0/app {DENIED['message']}; env NVIDIA_VISIBLE_DEVICES"),
        ("PRIORITY", "3"),
        ("SYSLOG_IDENTIFIER", "reassert"),
        ("REASSERT_EVENT", "container.denied"),
        ("REASSERT_ADAPTER", "runtime"),
        ("REASSERT_ID", "c1"),
        ("REASSERT_MODE", "Enforce"),
        ("REASSERT_START", "cold"),
        ("REASSERT_COLD", "absent"),
        ("REASSERT_NAMESPACE", "team-a"),
        ("REASSERT_POD", "web-0"),
        ("REASSERT_CONTAINER", "app"),
        ("REASSERT_RULE", "gpu"),
        ("REASSERT_PROBE", "1"),
        ("REASSERT_JSON", line),
    ]


def test_an_event_that_the_nodes_log_does_not_take_is_there(journald: socket.socket, tmp_path: Path) -> None:
    """A container of uid 0 with a read-only volume of the log takes a lease on it: no open(2) to write succeeds."""
    node, another = Path(events.EVENTS), tmp_path / "l"
    text = json.dumps(event("denied", "web-0", 1, level="error"))
    for log in (another, node):
        assert try_to_append(str(log), text)
        with leased(log):
            assert not try_to_append(str(log), text)
        assert log.read_text() == text + "\n"
    assert dict(received(journald.recv(1 << 18)))["REASSERT_JSON"] == text
    journald.setblocking(False)
    with pytest.raises(BlockingIOError):
        journald.recv(1)


def test_a_pods_text_is_no_field(journald: socket.socket, tmp_path: Path) -> None:
    names = {"namespace": FORGED, "pod": FORGED, "container": FORGED}
    send(tmp_path / "l", container=names, denials=[{"rule": FORGED, "message": FORGED}])
    found = received(journald.recv(1 << 18))
    assert [value for name, value in found if name == "REASSERT_EVENT"] == ["container.denied"]
    assert dict(found)["REASSERT_POD"] == FORGED
    assert all(name.startswith(("REASSERT_", "MESSAGE", "PRIORITY", "SYSLOG_")) for name, _ in found)


def test_an_event_without_a_container_is_sent_too(journald: socket.socket, tmp_path: Path) -> None:
    text = '{"event": "agent.ended", "level": "info", "adapter": "agent", "message": "answered 3"}'
    try_to_append(str(tmp_path / "l"), text, journal=True)
    assert received(journald.recv(1 << 18))[0] == ("MESSAGE", "agent.ended answered 3")


def test_the_largest_line_fits(journald: socket.socket, tmp_path: Path) -> None:
    send(tmp_path / "l", warning="x" * (events.EVENT_LINE - 600))
    assert len(journald.recv(1 << 18)) > events.EVENT_LINE - 600


def test_a_journal_that_is_full_or_away_delays_nothing(journald: socket.socket, tmp_path: Path) -> None:
    for _ in range(400):  # it reads none
        send(tmp_path / "l")
    journald.close()
    send(tmp_path / "l")
    assert len((tmp_path / "l").read_text().splitlines()) == 401


def test_the_policy_says_where_events_go_and_how_much_is_kept(journald: socket.socket, tmp_path: Path) -> None:
    def write(count: int, **spec: Any) -> None:
        in_force = policy({"name": "r", "env": [{"name": "A", "value": "1"}]}, **spec)
        for _ in range(count):
            if (tmp_path / "l").exists():
                os.truncate(tmp_path / "l", 1 << 20)  # a hole
            events.write(str(tmp_path / "l"), {"event": "x"}, in_force.event_log)

    write(5, eventLog={"maxSizeMiB": 1, "keep": 2, "journal": True})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l", "l.1", "l.2"]
    assert [bool(journald.recv(1 << 18)) for _ in range(5)] == [True] * 5
    write(1)
    journald.setblocking(False)
    with pytest.raises(BlockingIOError):
        journald.recv(1 << 18)


def test_two_policies_in_one_process_keep_their_logs_apart(journald: socket.socket, tmp_path: Path) -> None:
    """The agent answers for the runtimes of one policy, and a runtime can give its NRI plugin another one."""
    rule = {"name": "r", "env": [{"name": "A", "value": "1"}]}
    in_force = [policy(rule, eventLog={"journal": True}), policy(rule)]
    cases = [case("runtime", container_id, each) for container_id, each in zip("ab", in_force, strict=True)]
    verdicts = [each.failed(Unacceptable("no")) for each in cases]
    caller = Caller(Options([f"--events={tmp_path}/l"]), {})
    for each, verdict in zip(cases, verdicts, strict=True):
        with pytest.raises(Refused):
            caller.report(each, verdict)
    assert dict(received(journald.recv(1 << 18)))["REASSERT_ID"] == "a"
    journald.setblocking(False)
    with pytest.raises(BlockingIOError):
        journald.recv(1 << 18)
    assert len((tmp_path / "l").read_text().splitlines()) == 2
