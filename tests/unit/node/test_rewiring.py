"""From one wiring to another: in which order, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.node.artifacts.dispatchers import real_of
from hook.node.change import rewiring as change
from hook.node.change.files import Disk, State
from hook.node.change.record import PROGRAM, Record
from hook.node.engines.base import Wiring
from hook.node.errors import NodeError
from unit.node.fake import OURS, FakeEngine, FakeNode
from unit.ownmachine import Machine

pytestmark = pytest.mark.usefixtures("ran")

UNIT = "reassert-test.service"


def test_install_writes_what_is_referred_to_first_and_the_record_last(node: FakeNode, order: list[str]) -> None:
    assert node.install()
    assert order == [
        "+journal.json",
        "+start",
        "+reassert",
        "+policy.yaml",
        "+engine.conf",  # its backup
        "+reassert-runc",
        "+reassert.conf",
        "+engine.conf",
        "+installed.json",
        "check",
        "restart",
        "prove",
        "-journal.json",
    ]
    assert node.config.read_bytes() == b"theirs\n" + OURS
    assert Path(f"{node.state}/before{node.config}").read_bytes() == b"theirs\n"
    assert node.said[-1] == "restarting Fake 1.0; running containers stay"
    record = Record.read(node.state)
    assert record.engines() == ["fake"]
    assert record.parts["fake"].references == [str(node.drop_in), str(node.config)]
    assert str(node.drop_in.parent) in record.parts["fake"].directories
    assert set(record.parts[PROGRAM].files) == {path for path, _ in node.program()} | {
        f"{node.top}/etc/reassert/policy.yaml"
    }


def test_second_install_changes_nothing(node: FakeNode, order: list[str]) -> None:
    node.install()
    before, time = node.everything(), Path(f"{node.state}/installed.json").stat().st_mtime_ns
    order.clear()
    assert not node.install()
    assert order == []
    assert (node.everything(), Path(f"{node.state}/installed.json").stat().st_mtime_ns) == (before, time)


def test_new_dispatcher_alone_restarts_nothing(node: FakeNode) -> None:
    node.install()
    node.engine.calls.clear()
    assert node.install(node.wiring("runc", "crun"))
    assert node.engine.calls == ["prove"]


def test_uninstall_takes_references_first_and_the_program_last(node: FakeNode, order: list[str]) -> None:
    before = node.everything()
    node.install()
    order.clear()
    assert node.uninstall()
    assert order == [
        "+journal.json",
        "+engine.conf",
        "-reassert.conf",
        "+installed.json",
        "check",
        "restart",
        "prove",
        "-journal.json",
        "+journal.json",
        "-reassert-runc",
        "-engine.conf",  # its backup
        "-policy.yaml",
        "-reassert",
        "-start",
        "-installed.json",
        "-journal.json",
    ]
    assert node.everything() == before


def test_engine_that_still_refers_to_it_keeps_it(node: FakeNode) -> None:
    node.install()
    before = node.everything()
    node.engine.left = ("runtime",)
    with pytest.raises(NodeError, match="still refers to reassert in runc, by a setting that install did not write"):
        node.uninstall()
    assert node.everything() == before


def test_what_was_edited_since_is_stripped(node: FakeNode) -> None:
    node.install()
    node.config.write_bytes(b"theirs\n" + OURS + b"a later edit\n")
    node.uninstall()
    assert node.config.read_bytes() == b"theirs\na later edit\n"
    assert node.config.stat().st_mode & 0o777 == 0o640
    assert node.everything().keys() == FakeNode(node.top.parent / "fresh").everything().keys()


def test_what_was_edited_since_is_what_the_next_install_starts_from(node: FakeNode) -> None:
    node.install()
    node.config.write_bytes(b"theirs\n" + OURS + b"a later edit\n")
    base = change.base_of(Record.read(node.state), node.engine, Disk())(str(node.config))
    assert base
    assert base.content == b"theirs\na later edit\n"
    wiring = node.wiring()
    wiring.references[1] = (str(node.config), base.with_content(b"theirs\na later edit\n" + OURS))
    node.install(wiring)
    assert Path(f"{node.state}/before{node.config}").read_bytes() == b"theirs\na later edit\n"
    node.uninstall()
    assert node.config.read_bytes() == b"theirs\na later edit\n"


def test_an_engine_that_would_not_start_again_is_not_restarted(node: FakeNode) -> None:
    node.engine.blockers_of = ["x.json: CRI-O does not start"]
    with pytest.raises(NodeError, match=r"Fake 1.0 runs and would not start again: x.json: CRI-O does not start"):
        node.install(node.wiring("crun"))
    assert not node.dispatcher("crun").exists()


def test_dispatcher_that_is_not_needed_any_more_goes(node: FakeNode, order: list[str]) -> None:
    node.dispatcher("crun").write_text("an administrator's\n")
    node.install(node.wiring("crun", "runc"))
    order.clear()
    assert node.install(node.wiring("youki"))
    assert order[-4:] == ["-reassert-runc", "+reassert-crun", "+installed.json", "-journal.json"]
    assert order.index("prove") < order.index("-reassert-runc")
    assert node.dispatcher("crun").read_text() == "an administrator's\n"
    assert Record.read(node.state).owned(str(node.dispatcher("crun"))) is None
    assert not [line for line in node.said if "still call" in line]
    assert sorted(path.name for path in (node.top / "sbin").iterdir()) == ["reassert-crun", "reassert-youki"]


def test_dispatcher_that_containers_still_call_passes_through_until_they_are_gone(node: FakeNode) -> None:
    before = node.everything()
    node.install()
    node.engine.callers[str(node.dispatcher())] = 2
    node.uninstall()
    assert node.said[-1].startswith(f"2 running containers or commands still call {node.dispatcher()}: it stays")
    assert real_of(str(node.dispatcher())) == "/usr/sbin/runc"
    assert node.dispatcher().read_text().count("\n") == 4
    assert "lib/reassert/node/installed.json" in node.everything()
    assert not (node.top / "bin/reassert").is_symlink()
    record = Record.read(node.state)
    assert (record.engines(), record.engines_with_files()) == ([], ["fake"])
    assert not node.uninstall()  # as long as they run
    node.engine.callers.clear()
    node.engine.calls.clear()
    assert node.uninstall()
    assert node.engine.calls == ["prove"]
    assert node.everything() == before


@pytest.mark.parametrize("callers", [0, 1])
def test_what_another_engine_needs_too_stays(node: FakeNode, callers: int) -> None:
    """And where that one goes as well, what containers of the first still call."""
    other = FakeEngine("other")
    before = node.everything()
    node.install()
    shared = node.everything()
    wiring = node.wiring()
    wiring.references = [(f"{node.top}/etc/other.conf", State(OURS))]
    wiring.units = [UNIT]
    node.install(wiring, other)
    wired = node.dispatcher().read_text()
    other.callers[str(node.dispatcher())] = callers
    node.uninstall(other)
    assert (node.top / "bin/reassert").is_symlink()
    assert node.dispatcher().read_text() == wired
    assert node.config.read_bytes() == b"theirs\n" + OURS
    assert node.everything().keys() == shared.keys()
    node.uninstall()
    if callers:
        assert node.dispatcher().read_text() != wired
        other.callers.clear()
        node.uninstall(other)
    assert node.everything() == before


def with_unit(node: FakeNode) -> Wiring:
    wiring = node.wiring()
    wiring.artifacts.append((f"{node.top}/etc/{UNIT}", State(b"[Service]\n")))
    wiring.units = [UNIT]
    return wiring


def test_unit_runs_with_it_and_stops_after_it(node: FakeNode, ran: Machine) -> None:
    node.install(with_unit(node))
    assert ran.asked() == ["daemon-reload", f"restart --no-block {UNIT}"]
    compiled = ran.file("/var/lib/reassert/0123.json")
    node.uninstall()
    assert ran.asked() == [f"stop {UNIT}", "daemon-reload"]
    assert not compiled.exists()


def test_unit_that_was_not_stopped_is_stopped_by_the_next(node: FakeNode, ran: Machine) -> None:
    """Killed when there is no way back any more and the unit still runs."""
    node.install(with_unit(node))
    ran.file(f"/run/units/{UNIT}.fails", "killed")
    with pytest.raises(NodeError, match="killed"):
        node.uninstall()
    Path(f"/run/units/{UNIT}.fails").unlink()
    ran.asked()
    node.uninstall()
    assert ran.asked() == [f"stop {UNIT}", "daemon-reload"]


def test_a_masked_engine_is_not_begun_with(node: FakeNode, ran: Machine) -> None:
    """Nobody could restart it, for the change or for its return."""
    before = node.everything()
    node.engine.service = "fake.service"
    ran.file("/run/units/fake.service.masked")
    with pytest.raises(NodeError, match=r"^fake.service is masked .*unmask it first$"):
        node.install()
    assert (node.everything(), node.engine.calls) == (before, [])


def test_a_second_install_starts_what_was_stopped_or_failed(node: FakeNode, ran: Machine) -> None:
    """As a configuration management that installs each hour expects: files and services converge."""
    wiring = node.wiring()
    wiring.units = [UNIT]
    node.install(wiring)
    ran.asked()
    assert not node.install(wiring)
    assert ran.asked() == []
    Path(f"/run/units/{UNIT}").unlink()
    assert not node.install(wiring)
    assert ran.asked() == [f"reset-failed {UNIT}", "daemon-reload", f"start --no-block {UNIT}"]
    assert node.said[-1] == f"starting {UNIT}, which did not run"
