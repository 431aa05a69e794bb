"""What a NodeEnforcement says: facts.sh asks the program, whose JSON has the fields of the definition."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import marks
import pytest

from hook import __version__
from hook.core.policy.store import store_path
from hook.node import kept
from hook.node.change.record import OwnerRecord, Record
from hook.node.engines.base import NOT_INSTALLED, AnyEngine, Handler
from hook.node.kept import Audited, Container, Kept, Verified
from hook.node.loaded import NOT_KNOWN, Loaded
from hook.ops.health.enforcement import as_enforcement
from hook.ops.health.node import EngineState, Node
from hook.ops.health.status import Status
from unit.kubernetes.chart import KUBERNETES, load
from unit.ownmachine import Machine
from unit.support import policy

pytestmark = marks.promise(
    "A NodeEnforcement says what was seen on its node: what could not be looked at is absent",
    about="Packages and cluster",
)

SCRIPT = KUBERNETES / "image" / "facts.sh"
NSENTER = """\
#!/bin/sh
shift 7 # --target 1 --mount -- env -i PATH=…
exec "$@"
"""
REASSERT = """\
#!/bin/sh
cd {where}
case $* in "status --output=enforcement "*) printf '%s\n' "$@" > asked; cat answer; exit 4 ;; esac
"""
POLICY = "kind: NodePolicy\n"
WANTED = hashlib.sha256(POLICY.encode()).hexdigest()


class Pod:
    """`look` runs facts.sh, and returns what it has written; None: nothing. `state`: what node.sh says."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.state = "NothingToVerify words of node.sh\n"
        (where / "work").mkdir()
        (where / "opt/reassert").mkdir(parents=True)
        for name, text in (("nsenter", NSENTER), ("opt/reassert/reassert", REASSERT.format(where=where))):
            (where / name).write_text(text)
            (where / name).chmod(0o755)
        self.write("answer", {"state": "from the program"})
        (where / "policy.yaml").write_text(POLICY)

    def write(self, name: str, content: object) -> None:
        (self.where / name).parent.mkdir(parents=True, exist_ok=True)
        (self.where / name).write_text(json.dumps(content))

    def look(self, **environment: str) -> Any:
        (self.where / "work/state").write_text(self.state)
        own = {
            "PATH": f"{self.where}:{os.environ['PATH']}",
            "WORK": f"{self.where}/work",
            "INSTALLED": f"{self.where}/opt/reassert/reassert",
        }
        own |= {"POLICY": f"{self.where}/policy.yaml", "STATE_DIRECTORY": f"{self.where}/state", **environment}
        facts = self.where / "work/facts.json"
        facts.unlink(missing_ok=True)
        subprocess.run(["sh", SCRIPT], env=own, timeout=600, check=True)
        return json.loads(facts.read_text()) if facts.exists() else None


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


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_the_program_is_told_what_the_pod_knows(pod: Pod) -> None:
    assert pod.look() == {"state": "from the program"}
    options = ["--state=NothingToVerify", "--message=words of node.sh", f"--wanted={WANTED}"]
    assert (pod.where / "asked").read_text().splitlines() == ["status", "--output=enforcement", *options]


def test_a_program_that_does_not_answer_leaves_what_the_pod_knows(pod: Pod) -> None:
    """As before the first install: nothing is 0, green or empty. The words of the state cannot break the JSON."""
    (pod.where / "opt/reassert/reassert").unlink()
    pod.state = 'NotReady a "word" \\ and another\n'
    found = pod.look()
    assert found.pop("lookedAt").endswith("Z")
    assert found == {"state": "NotReady", "message": "a word  and another", "kernel": os.uname().release}


def test_a_look_is_repeated_after_a_change_or_ten_minutes(pod: Pod) -> None:
    assert pod.look()
    assert pod.look() is None
    for change in (
        lambda: pod.write(store_path("/etc/reassert/policy.yaml", "state"), {}),
        lambda: pod.write("state/trust/company/live/manifest.json", {}),
        lambda: (pod.where / "policy.yaml").write_text(POLICY + "#"),
        lambda: setattr(pod, "state", "Enforcing \n"),
    ):
        change()
        assert pod.look()
        assert pod.look() is None
    os.utime(pod.where / "work/facts.signs", (0, 0))
    assert pod.look()


# -- what the program says


def engine(name: str, title: str, *handlers: Handler, adapters: tuple[str, ...] = ()) -> EngineState:
    made = SimpleNamespace(name=name, title=title, running=lambda: True)
    return EngineState(cast(AnyEngine, made), OwnerRecord([*adapters]), cast(Any, None), Loaded([*handlers]))


@pytest.fixture
def found(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Status]:
    rules = [{"name": name, "env": [{"name": name.upper(), "value": "1"}]} for name in ("a", "b")]
    in_force = policy(rules[0], {**rules[1], "mode": "Audit"})
    in_force.warning = "line 3: no such field"
    handlers = (
        Handler("runc", "/r", ("runtime",)),
        Handler("crun", "/c", ()),
        Handler("kata", "", (), NOT_KNOWN),
        Handler("gone", "/g", (), NOT_INSTALLED, is_installed=False),
    )
    engines = [
        engine("containerd", "containerd 1.7.24", *handlers, adapters=("runtime",)),
        engine("podman", "podman 4.3", Handler("crun", "/c", ())),
    ]
    containers = {str(n): Container(state) for n, state in enumerate(["drifted"] * 2 + ["in policy"] * 3 + ["unknown"])}
    verified = {"containerd": Verified(1769860800, 0, ["rule/*"]), "docker": Verified(1769850000, 3)}
    record = Record("/nowhere", {"containerd": OwnerRecord(["runtime"])})
    node = Node(record, engines, {}, policy=in_force, kept=Kept(verified=verified))
    node.__dict__["audited"] = Audited(containers=containers)
    store = {"generation": 7, "built": "2026-01-30T00:00:00Z", "certificates": [1, 2]}
    machine.file("/var/lib/reassert/trust/company/live/manifest.json", json.dumps(store))
    machine.file("/var/log/reassert/events.jsonl")
    yield Status(node, [], since="2026-01-31T12:00:00.123456Z")


def says(found: Status) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(as_enforcement(found, "NothingToVerify", "one; two", WANTED))
    return said


def test_every_fact_is_one_of_the_definition(found: Status) -> None:
    (spec,) = load((KUBERNETES / "chart/files/nodeenforcements.yaml").read_text())
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    said = says(found)
    assert unknown(said, schema) == []
    assert said.keys() == schema["properties"].keys()
    assert len(said.pop("lookedAt")) == len("2026-01-31T12:00:00Z")
    in_force = found.node.policy.fingerprint if found.node.policy else ""
    containerd = {"name": "containerd", "version": "containerd 1.7.24", "running": True, "adapters": ["runtime"]}
    assert said == {
        "state": "NothingToVerify",
        "message": "one; two",
        "policy": {
            "wanted": {"sha256": WANTED, "hash": WANTED[:12]},
            "inForce": {
                "sha256": in_force,
                "hash": in_force[:12],
                "since": "2026-01-31T12:00:00.123456Z",
                "mode": "Mixed",
            }
            | {"enforcedRules": 1, "triedRules": 1},
            "heldBack": "line 3: no such field",
        },
        "handlers": {"wired": 1, "notWired": 1, "notKnown": 1},
        "engine": "containerd 1.7.24",
        "engines": [
            {**containerd, "wired": ["runc"], "notWired": ["crun"], "notKnown": ["kata"]},
            {**containerd, "name": "podman", "version": "podman 4.3", "adapters": [], "wired": []}
            | {"notWired": ["crun"], "notKnown": []},
        ],
        "verify": {
            "at": "2026-01-31T09:00:00Z",
            "result": "NothingToVerify",
            "engines": [
                {"engine": "containerd", "at": "2026-01-31T12:00:00Z", "exitStatus": 0},
                {"engine": "docker", "at": "2026-01-31T09:00:00Z", "exitStatus": 3},
            ],
        },
        "containers": {"inPolicy": 3, "drifted": 2, "exempt": 0, "unknown": 1},
        "lastDay": {"refusals": 0, "overrides": 0},
        "trustStores": [{"name": "company", "generation": 7, "builtAt": "2026-01-30T00:00:00Z", "certificates": 2}],
        "kernel": os.uname().release,
        "reassert": __version__,
    }


def test_the_last_day_counts_containers(found: Status, machine: Machine) -> None:
    log = Path("/var/log/reassert/events.jsonl")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    events: list[dict[str, Any]] = [
        {"event": "container.denied", "id": "1", "mode": "Enforce"},
        {"event": "container.denied", "id": "1", "mode": "Enforce"},
        {"event": "container.denied", "id": "2", "mode": "Enforce", "probe": True},
        {"event": "container.edited", "id": "3", "mode": "Enforce", "edits": [{"before": ["/tmp/x"]}]},
        {"event": "container.edited", "id": "4", "mode": "Enforce", "edits": [{"before": []}, {"before": None}]},
        {"event": "container.edited", "id": "5", "mode": "Enforce", "edits": [{"before": ["x"], "mode": "Audit"}]},
        {"event": "container.edited", "id": "6", "mode": "Audit", "edits": [{"before": ["x"]}]},
        {"event": "container.would-deny", "id": "7", "mode": "Audit"},
    ]
    machine.file(str(log), "".join(json.dumps({"timestamp": now, **event}) + "\n" for event in events))
    assert says(found)["lastDay"] == {"refusals": 1, "overrides": 1}


def test_what_cannot_be_looked_at_is_absent(found: Status, machine: Machine) -> None:
    machine.file("/var/lib/reassert/trust/company/live/manifest.json", "{")
    found.node.policy = None
    found.node.kept = kept.Kept()
    found.node.engines.clear()
    said = says(found)
    assert said.keys() == {
        "lookedAt",
        "state",
        "message",
        "policy",
        "engines",
        "containers",
        "lastDay",
        "kernel",
        "reassert",
    }
    assert said["policy"] == {"wanted": {"sha256": WANTED, "hash": WANTED[:12]}}
