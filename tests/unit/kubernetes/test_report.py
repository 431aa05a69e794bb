"""report.sh: what it tells the API server of a node's state. kubectl is a script that writes down its arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import marks
import pytest

from unit.kubernetes.chart import KUBERNETES

pytestmark = [
    marks.promise(
        "A node pod's token changes the start-up taint and the condition of its own node, and nothing else",
        about="Packages and cluster",
    ),
    marks.promise("A NodeEnforcement says what was seen on its node: what could not be looked at is absent"),
]

SCRIPT = KUBERNETES / "image" / "report.sh"
TAINT = "reassert.internal/not-wired"
KUBECTL = """\
#!/bin/sh
printf '%s\\n' "$*" | tr '\\n' ' ' >> "$CALLS"; echo >> "$CALLS"
case $*:$1 in
*.taints*) printf 'node.kubernetes.io/not-ready {taint}' ;;
*.metadata.uid*) printf uid-1 ;;
*conditions*:get) printf %s "$BEFORE" ;;
*:apply) cat >> "$CALLS.applied"; echo >> "$CALLS.applied"; [ -z "$FAILS" ] ;;
esac
"""
SLEEP = """\
#!/bin/sh
read -r count < "$CALLS.rounds"
echo $((count - 1)) > "$CALLS.rounds"
[ -z "$NEXT" ] || echo "$NEXT" > "$STATE_FILE"
{look}
[ "$count" -gt 1 ]
"""
"""Ends report.sh after as many seconds as the file says: `set -e`. NEXT: the state after the first."""


def told(
    tmp_path: Path, state: str | None, rounds: int = 2, taints: str = TAINT, look: str = "", **environment: str
) -> list[str]:
    """The calls of kubectl after some rounds with this state. `look`: a command of each pause."""
    for name, text in (("kubectl", KUBECTL.replace("{taint}", taints)), ("sleep", SLEEP.replace("{look}", look))):
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
        "BEFORE": "False",
        "FAILS": "",
        "NODE": "n1",
        "INTERVAL": "1",
    }
    own |= {"CALLS": str(calls), "STATE_FILE": str(tmp_path / "state"), "FACTS_FILE": str(tmp_path / "facts.json")}
    subprocess.run(["sh", SCRIPT], env={**own, **environment}, timeout=600, check=False)
    return calls.read_text().splitlines()


def condition(call: str) -> dict[str, str]:
    assert call.startswith("patch node n1 --subresource=status --type=strategic --patch ")
    [found] = json.loads(call[call.index("{") :])["status"]["conditions"]
    assert found.pop("type") == "ReassertEnforcing"
    assert isinstance(found, dict)
    return found


def conditions(calls: list[str]) -> list[dict[str, str]]:
    return [condition(call) for call in calls if call.startswith("patch")]


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
    [found] = conditions(told(tmp_path, state, CONDITION="true"))  # once, since nothing has changed
    assert ("lastTransitionTime" in found) is (status == "True")  # it was False before
    found.pop("lastTransitionTime", None)
    assert found.pop("lastHeartbeatTime")
    assert found == {"status": status, "reason": reason, "message": message}


def test_the_heartbeat_is_the_time_of_the_last_look(tmp_path: Path) -> None:
    """It goes on while nothing changes."""
    look = 'touch --date=@$((4102444800 - count * 1000)) "$STATE_FILE"'
    found = conditions(told(tmp_path, "Enforcing \n", 3, look=look, CONDITION="true", BEFORE="True"))
    assert [each["lastHeartbeatTime"] for each in found[1:]] == ["2099-12-31T23:10:00Z", "2099-12-31T23:26:40Z"]
    assert not any("lastTransitionTime" in each for each in found)


def test_a_look_that_is_too_old_says_nothing_about_the_node(tmp_path: Path) -> None:
    look = 'touch --date=@1000 "$STATE_FILE"'
    *_, last = conditions(told(tmp_path, "Enforcing \n", look=look, CONDITION="true", BEFORE="True"))
    assert (last["status"], last["reason"]) == ("Unknown", "NotLooked")
    assert last["lastHeartbeatTime"] == "1970-01-01T00:16:40Z"


def test_a_change_is_told_within_a_second(tmp_path: Path) -> None:
    """Or the pod would be gone before the API server knows that its node was unwired."""
    calls = told(tmp_path, "Starting \n", CONDITION="true", NEXT="Removed ", INTERVAL="10")
    assert [found["reason"] for found in conditions(calls)] == ["Starting", "Removed"]


@pytest.mark.parametrize(
    ("state", "taints", "calls"),
    [
        ("Enforcing \n", TAINT, ["get", "taint"]),
        ("NothingToVerify \n", TAINT, ["get", "taint"]),
        ("NotReady x\n", TAINT, []),
        (None, TAINT, []),
        ("Enforcing \n", "another", ["get"]),
    ],
)
def test_the_taint_goes_when_the_node_is_wired(
    tmp_path: Path, state: str | None, taints: str, calls: list[str]
) -> None:
    """One that is not there is left alone."""
    found = told(tmp_path, state, rounds=1, taints=taints, TAINT=TAINT)
    assert [call.split()[0] for call in found] == calls
    assert all(call == f"taint node n1 {TAINT}- " for call in found if call.startswith("taint"))


def test_nothing_is_told_that_was_not_asked_for_or_is_not_known(tmp_path: Path) -> None:
    assert told(tmp_path, "Enforcing \n", FLEET="true") == []
    (tmp_path / "facts.json").write_text('{"state": "Enforcing"}')
    assert told(tmp_path, "Enforcing \n") == []


def applied(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "calls.applied").read_text().replace("\n  ", " ").splitlines()]


def test_facts_are_sent_once_and_belong_to_the_node(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text('{"state": "Enforcing"}')
    calls = told(tmp_path, "Enforcing \n", rounds=3, FLEET="true")
    assert [call.split()[0] for call in calls] == ["get", "apply", "apply"]
    assert all("--server-side" in call and "--field-manager=reassert" in call for call in calls[1:])
    assert ["--subresource=status" in call for call in calls[1:]] == [False, True]
    made, sent = applied(tmp_path)
    about = {"apiVersion": "reassert.internal/v1alpha1", "kind": "NodeEnforcement"}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}
    assert made == {**about, "metadata": {"name": "n1", "ownerReferences": [owner]}}
    assert sent == {**about, "metadata": {"name": "n1"}, "status": {"state": "Enforcing"}}


def test_facts_that_cannot_be_sent_are_not_tried_at_each_look(tmp_path: Path) -> None:
    """All nodes may fail for the same reason."""
    (tmp_path / "facts.json").write_text('{"state": "Enforcing"}')
    calls = told(tmp_path, "Enforcing \n", rounds=5, FLEET="true", FAILS="yes")
    assert [call.split()[0] for call in calls] == ["get", "apply"]
