"""What stays on a node after uninstall, and what `--purge` removes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import marks
import pytest

from hook.node.change.leftovers import leftovers, purge
from hook.node.change.record import OwnedFile, OwnerRecord, Record
from unit.ownmachine import Machine
from unit.support import called

pytestmark = marks.promise("`status` reports every problem, also of files that the policy names")

POLICY = "/etc/reassert/policy.yaml"


@pytest.fixture
def node(machine: Machine) -> Machine:
    """A node that was wired once: a policy, a compiled one, an event log with an earlier one, a mark."""
    log = "/var/log/reassert/events.jsonl"
    for path in (
        POLICY,
        "/var/lib/reassert/a.json",
        "/var/lib/reassert/event-key",
        log,
        f"{log}.1.gz",
        "/run/reassert/probes/1",
    ):
        machine.file(path)
    return machine


def paths(record: Record | None = None) -> dict[str, bool]:
    """Every leftover, and whether `--purge` removes it."""
    return {leftover.path: leftover.purged for leftover in leftovers(record or Record.read())}


def test_purge_leaves_nothing(node: Machine) -> None:
    purge()
    assert paths() == {}
    left = [Path(path) for path in ("/etc/reassert", "/var/lib/reassert", "/var/log/reassert", "/run/reassert")]
    assert not [path for path in left if path.exists()]


def test_purge_names_a_trust_store_and_leaves_it_to_the_containers_that_have_it(node: Machine) -> None:
    live = node.file("/var/lib/reassert/trust/company/live")
    purge()
    assert paths() == {"/var/lib/reassert/trust/company": False}
    assert live.exists()


def test_purge_keeps_what_is_not_reasserts(node: Machine) -> None:
    node.file("/etc/reassert/gpu")
    purge()
    assert paths() == {"/etc/reassert/gpu": False}


def test_purge_keeps_a_dispatcher_that_running_containers_call(node: Machine) -> None:
    record = Record.read()
    record.parts = {"docker": OwnerRecord(files={"/opt/reassert/reassert-runc": OwnedFile(None, "")})}
    purge()
    assert paths(record) == {"/opt/reassert/reassert-runc": False, record.path: False}


def test_what_stays_is_said_and_what_is_purged_too(node: Machine) -> None:
    said = called("uninstall").stdout
    assert f"Left on this node:\n  {POLICY}: the node policy\n" in said
    last = said.splitlines()[-1]
    assert last.startswith("To remove them too: rm ")
    assert Path(POLICY).exists()
    assert f"removing {POLICY}" in called("uninstall", "--purge").stdout.splitlines()
    assert called("uninstall").stdout == "Nothing is wired; nothing was changed.\n"


def test_the_last_line_of_an_uninstall_is_a_command_that_works_without_the_program(node: Machine) -> None:
    """The program is gone by then, if it was the last engine of install.sh, or a package that is removed."""
    command = called("uninstall").stdout.splitlines()[-1].partition("too: ")[2]
    subprocess.run(["sh", "-euc", command], check=True)
    assert paths() == {}
