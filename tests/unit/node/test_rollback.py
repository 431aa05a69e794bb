"""What fails, is interrupted or was killed half-way: everything is as it was before, in the right order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import marks
import pytest

from hook.node.artifacts.dispatchers import real_of
from hook.node.change import journal as journals
from hook.node.change.files import State
from hook.node.change.record import Record
from hook.node.change.rewiring import rollback
from hook.node.errors import NodeError
from unit.node.fake import FakeNode, Killed, killed_before
from unit.ownmachine import Machine

pytestmark = [
    pytest.mark.usefixtures("ran"),
    marks.promise("After a failure, a signal or a kill, every file is restored, at the latest by the next command"),
]


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
    assert (str(error.value), error.value.outcome) == (f"{fails} fails", "Everything is as it was before.")
    assert node.engine.calls == calls
    assert node.everything() == before
    assert journals.pending(node.state) is None


def test_engine_that_does_not_come_up_again_is_said_and_tried_again(node: FakeNode) -> None:
    before = node.everything()
    node.engine.fails.add("restart")
    monitored = node.engine.calls
    with pytest.raises(
        NodeError, match=r"^a container does not start; and then: .* does not start again: restart fails"
    ):
        install_with_failing_proof(node)
    assert monitored == ["check", "restart", "prove", "restart"]
    node.engine.fails.clear()
    recover(node)
    assert monitored[-1] == "restart"
    assert node.everything() == before


def install_with_failing_proof(node: FakeNode) -> None:
    node.engine.fails.remove("restart")

    def prove(_now: None) -> None:
        node.engine.fails.add("restart")
        node.engine.prove(None)
        raise NodeError("a container does not start")

    node.make(node.installed(), prove=prove)


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
    assert node.said[-1].startswith(f"1 running container or command still calls {node.dispatcher()}: it stays")
    assert real_of(str(node.dispatcher())) == "/usr/sbin/runc"
    assert not node.dispatcher("crun").exists()
    assert node.config.read_bytes() == b"theirs\n"
    assert journals.pending(node.state) is None
    assert Record.read(node.state).engines_with_files() == ["fake"]
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
    text = b'#!/bin/sh\n# written by reassert: for a test\nexec "$reassert" hook createRuntime\n'
    wiring.artifacts.append((str(hook), State(text, mode=0o755)))
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


@pytest.mark.parametrize("fails", [set[str](), {"clean"}])
def test_probes_of_a_killed_command_go_before_the_dispatcher_that_they_call(
    node: FakeNode, order: list[str], fails: set[str], ran: Machine
) -> None:
    Path("/run/reassert-verify-99999999-0").mkdir()

    def killed(_now: None) -> None:
        unfinished.enter_context(killed_before(1))  # nothing can be put back any more
        raise Killed

    with ExitStack() as unfinished, pytest.raises(Killed):
        node.make(node.installed(), prove=killed)
    order.clear()
    node.engine.fails |= fails
    recover(node)
    assert order.index("restart") < order.index("clean") < order.index("-reassert-runc")
    assert [line for line in node.said if "could not be removed: clean fails" in line] == (
        node.said[-1:] if fails else []
    )
    assert journals.pending(node.state) is None


# -- kill -9 at each step


def recover(node: FakeNode) -> None:
    """What every command does first (hook.ops.node)."""
    with journals.locked(node.state):
        begun = journals.pending(node.state)
        if begun is not None:
            rollback(begun, node.engine, begun.running, node.state, node.said.append)


def run(node: FakeNode, operation: str) -> None:
    """The command."""
    recover(node)
    if operation == "install":
        node.install()
    elif Record.read(node.state).engines_with_files():
        node.uninstall()


def is_killed(step: int, work: Callable[[], None]) -> bool:
    """Whether it was before that step; else it has come to its end."""
    with suppress(Killed), killed_before(step):
        work()
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["install", "uninstall"])
@pytest.mark.parametrize("finishing", ["install", "uninstall"])
def test_killed_at_any_step_and_whenever_it_is_put_back(
    node: FakeNode, operation: str, finishing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What puts it back is killed at its first step, then at its second one, until it comes to its end."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(time, "time", lambda: 1e9)  # the record has the time of the first install
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
