"""report.sh: what it tells the API server of a node's state. kubectl is a script that writes down its arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from unit.kubernetes.chart import KUBERNETES

SCRIPT = KUBERNETES / "image" / "report.sh"
TAINT = "reassert.internal/not-wired"
KUBECTL = """\
#!/bin/sh
printf '%s\\n' "$*" | tr '\\n' ' ' >> "$CALLS"; echo >> "$CALLS"
[ "$1" != get ] || printf 'node.kubernetes.io/not-ready {taint}'
"""
SLEEP = """\
#!/bin/sh
read -r count < "$CALLS.rounds"
echo $((count - 1)) > "$CALLS.rounds"
[ -z "$NEXT" ] || echo "$NEXT" > "$STATE_FILE"
[ "$count" -gt 1 ]
"""
"""Ends report.sh after as many seconds as the file says: `set -e`. NEXT: the state after the first."""


def told(tmp_path: Path, state: str | None, rounds: int = 2, taints: str = TAINT, **environment: str) -> list[str]:
    """The calls of kubectl after some rounds with this state."""
    for name, text in (("kubectl", KUBECTL.replace("{taint}", taints)), ("sleep", SLEEP)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    (tmp_path / "calls.rounds").write_text(f"{rounds}\n")
    if state is not None:
        (tmp_path / "state").write_text(state)
    own = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "NEXT": "",
        "CALLS": str(calls),
        "STATE_FILE": str(tmp_path / "state"),
        "NODE": "n1",
        "INTERVAL": "1",
    }
    subprocess.run(["sh", SCRIPT], env={**own, **environment}, timeout=30, check=False)
    return calls.read_text().splitlines()


def condition(call: str) -> dict[str, str]:
    assert call.startswith("patch node n1 --subresource=status --type=strategic --patch ")
    [found] = json.loads(call[call.index("{") :])["status"]["conditions"]
    assert found.pop("lastTransitionTime") == found.pop("lastHeartbeatTime")
    assert found.pop("type") == "ReassertEnforcing"
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("state", "status", "reason", "message"),
    [
        ("Enforcing \n", "True", "Enforcing", ""),
        ("NothingToVerify \n", "False", "NothingToVerify", ""),
        ('NotReady a "quoted" \\ line\x07\n', "False", "NotReady", "a quoted  line "),
        (None, "False", "Starting", ""),
    ],
)
def test_a_condition_says_what_the_pod_knows(
    tmp_path: Path, state: str | None, status: str, reason: str, message: str
) -> None:
    [call] = told(tmp_path, state, CONDITION="true")  # once, since nothing has changed
    assert condition(call) == {"status": status, "reason": reason, "message": message}


def test_a_change_is_told_within_a_second(tmp_path: Path) -> None:
    """Or the pod would be gone before the API server knows that its node was unwired."""
    calls = told(tmp_path, "Starting \n", CONDITION="true", NEXT="Removed ", INTERVAL="10")
    assert [condition(call)["reason"] for call in calls] == ["Starting", "Removed"]


@pytest.mark.parametrize(
    ("state", "removed"), [("Enforcing \n", True), ("NothingToVerify \n", True), ("NotReady x\n", False), (None, False)]
)
def test_the_taint_goes_when_the_node_is_wired(tmp_path: Path, state: str | None, removed: bool) -> None:
    calls = told(tmp_path, state, rounds=1, TAINT=TAINT)
    assert [call for call in calls if call.startswith("taint")] == ([f"taint node n1 {TAINT}- "] if removed else [])


def test_a_taint_that_is_not_there_is_left_alone(tmp_path: Path) -> None:
    calls = told(tmp_path, "Enforcing \n", rounds=1, taints="another", TAINT=TAINT)
    assert [call.split()[0] for call in calls] == ["get"]


def test_nothing_is_told_that_was_not_asked_for(tmp_path: Path) -> None:
    assert told(tmp_path, "Enforcing \n") == []
