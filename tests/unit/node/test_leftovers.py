"""What stays on a node after uninstall, and what `--purge` removes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.core import events
from hook.core.policy import compiler, store
from hook.node import command
from hook.node.change import leftovers
from hook.node.change.record import OwnedFile, OwnerRecord, Record


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that was wired once: a policy, a compiled one, an event log with an earlier one, a mark."""
    for module, name, path in (
        (store, "SOURCE", "etc/policy.yaml"),
        (store, "STORE", "lib"),
        (events, "EVENTS", "log/events.jsonl"),
        (events, "PROBES", "run/probes"),
        (leftovers.tree, "PLACE", "opt"),
    ):
        monkeypatch.setattr(module, name, str(tmp_path / path))
    monkeypatch.setattr(compiler.clear, "__defaults__", (str(tmp_path / "lib"),))
    for path in ("etc/policy.yaml", "lib/a.json", "log/events.jsonl", "log/events.jsonl.1.gz", "run/probes/1"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


def paths(node: Path, record: Record | None = None) -> dict[str, bool]:
    """Every leftover, and whether `--purge` removes it."""
    found = leftovers.leftovers(record or Record.read(str(node / "none")))
    return {leftover.path.removeprefix(f"{node}/"): leftover.purged for leftover in found}


def test_purge_leaves_nothing(node: Path) -> None:
    leftovers.purge()
    assert paths(node) == {}
    assert list(node.iterdir()) == []


def test_purge_names_a_trust_store_and_leaves_it_to_the_containers_that_have_it(node: Path) -> None:
    (node / "lib/trust/company/live").mkdir(parents=True)
    leftovers.purge()
    assert paths(node) == {"lib/trust/company": False}
    assert (node / "lib/trust/company/live").exists()


def test_purge_keeps_what_is_not_reasserts(node: Path) -> None:
    (node / "etc/gpu").touch()
    leftovers.purge()
    assert paths(node) == {"etc/gpu": False}


def test_purge_keeps_a_dispatcher_that_running_containers_call(node: Path) -> None:
    record = Record.read(str(node / "none"))
    record.parts = {"docker": OwnerRecord(files={"/usr/local/sbin/reassert-runc": OwnedFile(None, "")})}
    leftovers.purge()
    assert paths(node, record) == {"/usr/local/sbin/reassert-runc": False, "none/installed.json": False}


def test_what_stays_is_said_and_what_is_purged_too(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command._purge(False)
    said = capsys.readouterr().out
    assert said.startswith(f"Left on this node:\n  {node}/etc/policy.yaml: the node policy\n")
    assert said.endswith(" --purge` removes the policy, the compiled policies and the event log.\n")
    assert (node / "etc/policy.yaml").exists()
    command._purge(True)
    assert capsys.readouterr().out.splitlines()[0] == f"removing {node}/etc/policy.yaml"
    command._purge(False)
    assert capsys.readouterr().out == ""
