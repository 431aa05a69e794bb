"""From one wiring to another: in which order, what is put back when, and what a kill -9 leaves for the next run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from hook.node import change, systemd
from hook.node import journal as journals
from hook.node.change import put_back
from hook.node.engine import Wiring
from hook.node.errors import NodeError
from hook.node.files import State, put
from hook.node.record import PROGRAM, Record
from hook.node.wiring.wrapper import real_of
from unit.node.fake import OURS, FakeEngine, FakeNode, Killed, killed_before

UNIT = "reassert-test.service"


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """What was asked of systemd, which is there. Nothing of this machine is touched."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(systemd, "available", lambda: True)
    monkeypatch.setattr(systemd, "run", lambda *words: ran.append(words))
    monkeypatch.setattr(systemd, "is_active", lambda unit: True)
    monkeypatch.setattr(systemd, "wait_active", lambda unit: ran.append(("wait", unit)))
    for module in (change, change.tree):
        monkeypatch.setattr(module, "PLACE", str(tmp_path / "opt/reassert"))
    monkeypatch.setattr(change.tree, "ASIDE", str(tmp_path / "opt/aside"))
    monkeypatch.setattr(change.compiler, "clear", lambda: ran.append(("clear",)))
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield ran
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "node")


@pytest.fixture
def order(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were put or removed, among the engine's calls, in order."""

    def logged(path: str, state: State | None) -> None:
        node.engine.calls.append(("+" if state else "-") + path.rpartition("/")[2])
        put(path, state)

    monkeypatch.setattr(journals, "put", logged)
    monkeypatch.setattr(change, "put", logged)
    return node.engine.calls


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
    assert node.said[-1] == "restarting Fake 1.0"
    record = Record(node.state)
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


def test_engine_that_does_not_run_is_only_asked_what_it_reads(node: FakeNode) -> None:
    node.engine.up = False
    node.install()
    assert node.engine.calls == ["check"]
    assert node.said[-1] == "Fake 1.0 does not run; it will read its new configuration when it starts"


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("check", ["check"]),
        ("prove", ["check", "restart", "prove", "restart"]),
    ],
)
@pytest.mark.parametrize("operation", ["install", "uninstall"])
def test_what_fails_is_put_back_and_read_again(node: FakeNode, operation: str, fails: str, calls: list[str]) -> None:
    if operation == "uninstall":
        node.install()
        node.engine.calls.clear()
    before = node.everything()
    node.engine.fails.add(fails)
    with pytest.raises(NodeError) as error:
        getattr(node, operation)()
    assert str(error.value) == f"{fails} fails\nEverything is as it was before."
    assert node.engine.calls == calls
    assert node.everything() == before
    assert journals.pending(node.state) is None


def test_engine_that_does_not_come_up_again_is_said_and_tried_again(node: FakeNode) -> None:
    before = node.everything()
    node.engine.fails.add("restart")
    monitored = node.engine.calls
    with pytest.raises(NodeError, match="does not come up again: restart fails"):
        install_with_failing_proof(node)
    assert monitored == ["check", "restart", "prove", "restart"]
    node.engine.fails.clear()
    recover(node)
    assert monitored[-1] == "restart"
    assert node.everything() == before


def install_with_failing_proof(node: FakeNode) -> None:
    node.engine.fails.remove("restart")

    def prove() -> None:
        node.engine.fails.add("restart")
        node.engine.prove()
        raise NodeError("a container does not start")

    node.make(node.installed(), prove=prove)


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
    with pytest.raises(NodeError, match="still refers to reassert in runc, by a setting of somebody else's"):
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
    base = change.base_of(Record(node.state), node.engine)(str(node.config))
    assert base
    assert base.content == b"theirs\na later edit\n"
    wiring = node.wiring()
    wiring.references[1] = (str(node.config), base.with_content(b"theirs\na later edit\n" + OURS))
    node.install(wiring)
    assert Path(f"{node.state}/before{node.config}").read_bytes() == b"theirs\na later edit\n"
    node.uninstall()
    assert node.config.read_bytes() == b"theirs\na later edit\n"


def test_policy_that_was_edited_stays(node: FakeNode) -> None:
    node.install()
    policy = node.top / "etc/reassert/policy.yaml"
    policy.write_text("mine\n")
    node.uninstall()
    assert policy.read_text() == "mine\n"
    assert not (node.top / "bin/reassert").is_symlink()


def test_dispatcher_that_is_not_needed_any_more_goes(node: FakeNode, order: list[str]) -> None:
    node.dispatcher("crun").write_text("an administrator's\n")
    node.install(node.wiring("crun", "runc"))
    order.clear()
    assert node.install(node.wiring("youki"))
    assert order[-4:] == ["-reassert-runc", "+reassert-crun", "+installed.json", "-journal.json"]
    assert order.index("prove") < order.index("-reassert-runc")
    assert node.dispatcher("crun").read_text() == "an administrator's\n"
    assert Record(node.state).owned(str(node.dispatcher("crun"))) is None
    assert not [line for line in node.said if "running containers" in line]
    assert sorted(path.name for path in (node.top / "sbin").iterdir()) == ["reassert-crun", "reassert-youki"]


def test_dispatcher_that_containers_still_call_passes_through_until_they_are_gone(node: FakeNode) -> None:
    before = node.everything()
    node.install()
    node.engine.callers[str(node.dispatcher())] = 2
    node.uninstall()
    assert node.said[-1].startswith(f"2 running containers still call {node.dispatcher()}: it stays")
    assert real_of(str(node.dispatcher())) == "/usr/sbin/runc"
    assert node.dispatcher().read_text().count("\n") == 3
    assert "lib/reassert/node/installed.json" in node.everything()
    assert not (node.top / "bin/reassert").is_symlink()
    record = Record(node.state)
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
    wiring.carriers.append((f"{node.top}/etc/{UNIT}", State(b"[Service]\n")))
    wiring.units = [UNIT]
    return wiring


def test_unit_runs_with_it_and_stops_after_it(node: FakeNode, ran: list[tuple[str, ...]]) -> None:
    node.install(with_unit(node))
    assert ran == [("daemon-reload",), ("restart", "--no-block", UNIT), ("wait", UNIT)]
    ran.clear()
    node.uninstall()
    assert ran == [("stop", UNIT), ("clear",), ("daemon-reload",)]


def test_unit_that_another_engine_has_too_runs_on(node: FakeNode, ran: list[tuple[str, ...]]) -> None:
    other = FakeEngine("other")
    node.install(with_unit(node))
    wiring = with_unit(node)
    wiring.references = [(f"{node.top}/etc/other.conf", State(OURS))]
    node.install(wiring, other)
    ran.clear()
    node.uninstall(other)
    assert ("stop", UNIT) not in ran
    node.uninstall()
    assert ("stop", UNIT) in ran


def test_unit_that_was_not_stopped_is_stopped_by_the_next(
    node: FakeNode, ran: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when there is no way back any more and the unit still runs."""
    node.install(with_unit(node))

    def run(*words: str) -> None:
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(systemd, "run", run)
        with pytest.raises(Killed):
            node.uninstall()
    ran.clear()
    node.uninstall()
    assert ran == [("stop", UNIT), ("clear",), ("daemon-reload",)]


def test_program_that_came_goes_when_the_engine_has_read_that_it_is_gone(node: FakeNode, order: list[str]) -> None:
    node.engine.fails.add("prove")
    with pytest.raises(NodeError):
        node.install()
    files = ["-installed.json", "+engine.conf", "-reassert.conf", "-engine.conf", "-policy.yaml"]
    programs = ["-reassert-runc", "-reassert", "-start"]
    assert order[order.index("prove") + 1 :] == [*files, "restart", *programs, "-journal.json"]


def test_containers_that_started_before_it_was_put_back_keep_their_dispatcher(node: FakeNode) -> None:
    """A node gets pods all the time, also between the restart and the proof that fails."""
    before = node.everything()
    node.engine.callers[str(node.dispatcher())] = 1
    node.engine.fails.add("prove")
    with pytest.raises(NodeError):
        node.install(node.wiring("runc", "crun"))
    assert node.said[-1].startswith(f"1 running containers still call {node.dispatcher()}: it stays")
    assert real_of(str(node.dispatcher())) == "/usr/sbin/runc"
    assert not node.dispatcher("crun").exists()
    assert node.config.read_bytes() == b"theirs\n"
    assert journals.pending(node.state) is None
    assert Record(node.state).engines_with_files() == ["fake"]
    node.engine.callers.clear()
    node.engine.fails.clear()
    node.uninstall()
    assert node.everything() == before


@pytest.mark.parametrize("fails", [set(), {"prove"}])
def test_what_is_no_runtime_is_waited_for_and_goes(node: FakeNode, fails: set[str]) -> None:
    """podman's hook: there is nothing that it could pass a container through to."""
    before = node.everything()
    wiring = node.wiring()
    hook = node.dispatcher("hook")
    text = b'#!/bin/sh\n# written by reassert: for a test\nexec "$reassert" hook precreate\n'
    wiring.carriers.append((str(hook), State(text, mode=0o755)))
    node.engine.callers[str(hook)] = 1
    node.engine.fails |= fails
    if fails:
        with pytest.raises(NodeError):
            node.install(wiring)
    else:
        node.install(wiring)
        node.uninstall()
    assert not [line for line in node.said if "still call" in line]
    assert node.everything() == before


def test_a_masked_engine_is_not_begun_with(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could restart it, for the change or for its return."""
    before = node.everything()
    node.engine.service = "fake.service"
    monkeypatch.setattr(systemd, "is_masked", lambda unit: unit == "fake.service")
    with pytest.raises(NodeError, match=r"^fake.service is masked .*unmask it first$"):
        node.install()
    assert (node.everything(), node.engine.calls) == (before, [])


def test_signal_puts_everything_back(node: FakeNode) -> None:
    before = node.everything()

    def prove() -> None:
        raise KeyboardInterrupt

    with pytest.raises(NodeError, match=r"^interrupted\nEverything is as it was before\.$"):
        node.make(node.installed(), prove=prove)
    assert node.engine.calls == ["check", "restart", "restart"]
    assert node.everything() == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_signal_does_not_stop_what_has_to_end(node: FakeNode) -> None:
    """Once all is proved, or is being put back."""
    node.make(node.installed(), prove=lambda: None)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


# -- kill -9 at each step


def recover(node: FakeNode) -> None:
    """What every command does first (hook.node.command)."""
    with journals.locked(node.state):
        begun = journals.pending(node.state)
        if begun is not None:
            put_back(begun, node.engine, begun.running, node.state, node.said.append)


def run(node: FakeNode, operation: str) -> None:
    """The command."""
    recover(node)
    if operation == "install":
        node.install()
    elif Record(node.state).engines_with_files():
        node.uninstall()


def is_killed(step: int, work: Callable[[], None]) -> bool:
    """Whether it was before that step; else it has come to its end."""
    with suppress(Killed), killed_before(step):
        work()
        return False
    return True


@pytest.mark.parametrize("operation", ["install", "uninstall"])
@pytest.mark.parametrize("finishing", ["install", "uninstall"])
def test_killed_at_any_step_and_whenever_it_is_put_back(
    node: FakeNode, operation: str, finishing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What puts it back is killed at its first step, then at its second one, until it comes to its end."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    wanted = {"uninstall": node.everything()}
    node.install()
    wanted["install"] = node.everything()
    for step in count(1):
        run(node, "install" if operation == "uninstall" else "uninstall")
        if not is_killed(step, lambda: run(node, operation)):
            break
        next(more for more in count(1) if not is_killed(more, lambda: recover(node)))
        run(node, finishing)
        assert node.everything() == wanted[finishing], f"killed before step {step}"
    assert step > 20
