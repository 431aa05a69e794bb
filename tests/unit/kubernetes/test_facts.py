"""facts.sh: what a NodeEnforcement says. The node is a directory, `reassert` a script that prints what a node does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.support import need

from hook.ops.events.summary import summarise
from unit.kubernetes.chart import KUBERNETES, load

SCRIPT = KUBERNETES / "image" / "facts.sh"
NSENTER = """\
#!/bin/sh
shift 7 # --target 1 --mount -- env -i PATH=…
exec "$@"
"""
REASSERT = """\
#!/bin/sh
cd {where}
case $* in
"node status --output=json") cat status.json; exit 4 ;;
"audit --output=json") cat audit.json; exit 1 ;;
"report --since=24h --output=json") cat report.json ;;
esac
"""
STATUS: dict[str, Any] = {
    "version": "0.4.0",
    "policy": {
        "sha256": "b" * 64,
        "mode": "Mixed",
        "rules": {"enforced": 2, "tried": 1},
        "since": "2026-01-31T12:00:00Z",
        "heldBack": "line 3: no such field",
    },
    "problems": ["one"],
    "remarks": ["two"],
    "engines": {
        "containerd": {
            "title": "containerd 1.7.24",
            "running": True,
            "adapters": ["runtime"],
            "handlers": [
                {"name": "runc", "wired": ["runtime"], "note": ""},
                {"name": "crun", "wired": [], "note": "not loaded"},
                {"name": "kata", "wired": [], "note": "not known"},
            ],
        },
        "podman": {"title": "podman 4.3", "running": True, "adapters": [], "handlers": [{"name": "crun", "wired": []}]},
    },
}
ENGINE = {
    "name": "containerd",
    "version": "containerd 1.7.24",
    "running": True,
    "adapters": ["runtime"],
    "wired": ["runc"],
    "notWired": ["crun"],
    "notKnown": ["kata"],
}
"""What facts.sh makes of the first engine of STATUS."""
COUNTS = {"drifted": 2, "unknown": 1, "exempt": 3, "in-policy": 40}
EVENTS: list[dict[str, Any]] = [
    {"event": "container.denied", "id": "1", "mode": "Enforce"},
    {"event": "container.denied", "id": "1", "mode": "Enforce"},
    {"event": "container.denied", "id": "2", "mode": "Enforce", "probe": True},
    {"event": "container.edited", "id": "3", "mode": "Enforce", "edits": [{"before": ["/tmp/x"]}]},
    {"event": "container.edited", "id": "4", "mode": "Enforce", "edits": [{"before": []}, {"before": None}]},
    {"event": "container.edited", "id": "5", "mode": "Enforce", "edits": [{"before": ["x"], "mode": "Audit"}]},
    {"event": "container.edited", "id": "6", "mode": "Audit", "edits": [{"before": ["x"]}]},
    {"event": "container.would-deny", "id": "7", "mode": "Audit"},
]
POLICY = "kind: NodePolicy\n"


class Node:
    """`look` runs facts.sh, and returns what it has written; None: nothing. `state`: what node.sh says."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.state = "NothingToVerify words\n"
        (where / "work").mkdir()
        (where / "opt/reassert").mkdir(parents=True)
        for name, text in (("nsenter", NSENTER), ("opt/reassert/reassert", REASSERT.format(where=where))):
            (where / name).write_text(text)
            (where / name).chmod(0o755)
        self.write("status.json", STATUS)
        self.write("audit.json", {"counts": COUNTS, "containers": []})
        self.write("report.json", summarise(EVENTS).as_json())
        (where / "policy.yaml").write_text(POLICY)

    def write(self, name: str, content: object) -> None:
        (self.where / name).parent.mkdir(parents=True, exist_ok=True)
        (self.where / name).write_text(json.dumps(content))

    def look(self, **environment: str) -> Any:
        (self.where / "work/state").write_text(self.state)
        own = {
            "PATH": f"{self.where}:{os.environ['PATH']}",
            "WORK": f"{self.where}/work",
            "PREFIX": f"{self.where}/opt",
        }
        own |= {"POLICY": f"{self.where}/policy.yaml", "STATE_DIRECTORY": f"{self.where}/state", **environment}
        facts = self.where / "work/facts.json"
        facts.unlink(missing_ok=True)
        subprocess.run(["sh", SCRIPT], env=own, timeout=60, check=True)
        return json.loads(facts.read_text()) if facts.exists() else None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    need(shutil.which("jq") is not None, "jq")
    return Node(tmp_path)


def unknown(value: Any, schema: Any) -> list[str]:
    """Fields that the definition does not have: server-side apply refuses them."""
    if isinstance(value, list):
        return [each for one in value for each in unknown(one, schema["items"])]
    if not isinstance(value, dict):
        return []
    known = schema["properties"]
    return [*(value.keys() - known)] + [
        each for name, one in value.items() if name in known for each in unknown(one, known[name])
    ]


def test_every_fact_is_one_of_the_definition(node: Node) -> None:
    node.write("state/last-verify.json", {"containerd": [1769860800, 0, ["rule/*"]], "docker": [1769850000, 3]})
    store = {"generation": 7, "built": "2026-01-30T00:00:00Z", "certificates": [1, 2]}
    node.write("state/trust/company/live/manifest.json", store)
    (spec,) = load((KUBERNETES / "chart/files/nodeenforcements.yaml").read_text())
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    found = node.look()
    assert unknown(found, schema) == []
    assert found.keys() == schema["properties"].keys()
    assert found.pop("lookedAt")
    assert found.pop("kernel") == os.uname().release
    wanted = hashlib.sha256(POLICY.encode()).hexdigest()
    assert found == {
        "state": "NothingToVerify",
        "message": "one; two",
        "policy": {
            "wanted": {"sha256": wanted, "hash": wanted[:12]},
            "inForce": {"sha256": "b" * 64, "hash": "b" * 12, "since": "2026-01-31T12:00:00Z", "mode": "Mixed"}
            | {"enforcedRules": 2, "triedRules": 1},
            "heldBack": "line 3: no such field",
        },
        "handlers": {"wired": 1, "notWired": 1, "notKnown": 1},
        "engine": "containerd 1.7.24",
        "engines": [
            ENGINE,
            {**ENGINE, "name": "podman", "version": "podman 4.3", "adapters": [], "wired": [], "notKnown": []},
        ],
        "verify": {
            "at": "2026-01-31T09:00:00Z",
            "result": "NothingToVerify",
            "engines": [
                {"engine": "containerd", "at": "2026-01-31T12:00:00Z", "exitStatus": 0},
                {"engine": "docker", "at": "2026-01-31T09:00:00Z", "exitStatus": 3},
            ],
        },
        "containers": {"inPolicy": 40, "drifted": 2, "exempt": 3, "unknown": 1},
        "lastDay": {"refusals": 1, "overrides": 1},
        "trustStores": [{"name": "company", "generation": 7, "builtAt": "2026-01-30T00:00:00Z", "certificates": 2}],
        "reassert": "0.4.0",
    }


def test_what_cannot_be_looked_at_is_absent(node: Node) -> None:
    """As on a node whose program does not answer: nothing is 0, green or empty."""
    for broken in ("status.json", "audit.json", "report.json"):
        (node.where / broken).write_text('{"half')
    found = node.look(POLICY="/nowhere/policy.yaml")
    assert found.keys() - {"policy"} == {"lookedAt", "state", "message", "kernel", "trustStores"}
    assert (found["message"], found["trustStores"]) == ("words", [])
    assert found.get("policy", {}).keys() <= {"wanted"}  # of this machine's file, if it has one


def test_a_quiet_day_is_a_number_and_a_report_that_failed_is_none(node: Node) -> None:
    node.write("report.json", summarise([]).as_json())
    assert node.look()["lastDay"] == {"refusals": 0, "overrides": 0}
    (node.where / "opt/reassert/reassert").write_text('#!/bin/sh\necho "{}"\nexit 1\n')
    os.utime(node.where / "work/facts.signs", (0, 0))
    assert "lastDay" not in node.look()


def test_a_look_is_repeated_after_a_change_or_ten_minutes(node: Node) -> None:
    assert node.look()
    assert node.look() is None
    node.write("state/wired.json", [1, {"containerd": {"runc": 1}}, []])
    assert node.look()
    node.write("state/wired.json", [61, {"containerd": {"runc": 1}}, []])
    assert node.look() is None
    for change in (
        lambda: node.write("state/wired.json", [121, {"containerd": {"runc": 0}}, []]),
        lambda: node.write("state/last-verify.json", {"containerd": [1, 0]}),
        lambda: node.write("state/etc-reassert-policy.yaml.json", {}),
        lambda: (node.where / "policy.yaml").write_text(POLICY + "#"),
        lambda: setattr(node, "state", "Enforcing \n"),
    ):
        change()
        assert node.look()
        assert node.look() is None
    os.utime(node.where / "work/facts.signs", (0, 0))
    assert node.look()
