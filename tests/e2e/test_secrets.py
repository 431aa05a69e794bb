"""What a container has in a reserved name, or in a name that must be absent, is in no log and no report.

It may be a password of the container's author. Real runtimes, with the wrapper and the hook.
"""

from __future__ import annotations

import json
import os
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import run
from unit.kubelet import entry, write_checkpoint

from e2e.runtimes import guarded
from hook.core.base import journal
from hook.ops.health.bundle import harmless
from hook.ops.metrics.log import LogCounter
from hook.ops.metrics.prometheus import Metrics
from hook.resident.metrics import NoMetrics

pytestmark = marks.promise(
    "A value that is not the policy's is in no event, journal, report, metric, audit, bundle or refusal; in "
    "its place are its length and a hash with the node's key",
    about="Events and metrics",
)

SECRET = "pl4nted-s3cret-of-a-pod"
UID = "11111111-2222-3333-4444-555555555555"

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  mode: MODE
  kubelet: {root: KUBELET}
  rules:
  - name: absent
    env: [{name: "*_TOKEN", absent: true}, {name: PASSWORD, absent: true}]
  - name: value
    env: [{name: CA, value: /ca.pem}]
  - name: file
    env: [{name: PROXY, valueFrom: {file: FILE}}]
  - name: gpu
    env: [{name: GPU, valueFrom: {deviceAllocation: {default: void}}}]
  - name: tried
    mode: Audit
    env: [{name: TRIED, absent: true}]
  - name: annotations
    annotations: [{name: example.com/*, absent: true}]
DENY"""

DENY = """\
  - name: denied
    onConflict: Deny
    env: [{name: DENIED, value: fixed}, {name: DENIED_ABSENT, absent: true}]
    annotations: [{name: denied.example.com, absent: true}]
"""

NAMES = ("A_TOKEN", "PASSWORD", "CA", "PROXY", "GPU", "TRIED")


def write(node: Node, mode: str = "Enforce", deny: str = "") -> None:
    """The policy, with an allocation for the container."""
    kubelet, file = node.directory / "kubelet", node.directory / "proxy"
    file.write_text("http://proxy:3128\n")
    write_checkpoint(kubelet, entry(UID, "c", "GPU-4", envs={"GPU": "GPU-4"}))
    text = POLICY.replace("MODE", mode).replace("KUBELET", str(kubelet)).replace("FILE", str(file))
    node.compile(text.replace("DENY", deny))


def plant(bundle: Bundle, *names: str, **annotations: str) -> None:
    """Give the container the secret in each of these names, and annotations."""
    bundle.pod(**annotations)
    bundle.spec["process"]["env"] += [f"{name}={SECRET}" for name in names]
    bundle.save()


def told(node: Node) -> str:
    """All that anybody is told of what the node's log has: the log, the journal, and every command that reads it."""
    text = node.events.read_text()
    for line in text.splitlines():
        text += repr(journal.fields(line)) + json.dumps(harmless(json.loads(line)))
    options = ["--events", str(node.events)]
    for form in ("table", "json", "html"):
        text += run(str(REASSERT), "report", *options, "-o", form).stdout
    for form in ("table", "wide", "json"):
        text += run(str(REASSERT), "events", *options, "-o", form).stdout
    text += run(str(REASSERT), "events", *options, "--conflicts").stdout
    return text + counted(node)


def counted(node: Node) -> str:
    """The metrics of the node's log."""
    from prometheus_client import generate_latest

    metrics = Metrics()
    counter = LogCounter(str(node.events), str(node.store), metrics)
    assert isinstance(metrics, NoMetrics)
    text = node.events.read_bytes()
    node.events.write_bytes(b"")
    counter.count()
    node.events.write_bytes(text)
    counter.count()
    return generate_latest(metrics.registry).decode()


@marks.hole(
    "The event log, and with `eventLog.journal` the journal, had the value of each env name that must be "
    "absent or was overridden: other people's secrets",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("mode", ["Enforce", "Audit"])
def test_of_a_corrected_container(node: Node, bundle: Bundle, real: str, mode: str) -> None:
    write(node, mode)
    plant(bundle, *NAMES, **{"example.com/note": SECRET, "org.criu.config": SECRET})
    with Running(node.dispatcher(real), bundle) as container:
        got = container.environ()
        decision = bundle.saved()["annotations"].get("reassert/decision", "")
        audited = [
            run(str(REASSERT), "audit", *node.options()[:4], "-o", form, container.id, check=False).stdout
            for form in ("table", "json")
        ]
        output = container.output()
    edits = {edit["name"]: edit for event in node.logged() for edit in event["edits"]}
    assert {*NAMES, "example.com/note", "org.criu.config"} <= edits.keys()
    hashes = [str(edits[name]["before"]) for name in NAMES]
    assert len(set(hashes)) == 1, "equal values are seen as equal"
    assert f"'bytes': {len(SECRET)}, 'hash': '" in hashes[0]
    assert (f"CA={SECRET}" in got) == (mode == "Audit")
    assert "c" in audited[0]
    for text in (told(node), decision, output, *audited):
        assert SECRET not in text


@marks.hole(
    "The event log, and with `eventLog.journal` the journal, had the value of each env name that must be "
    "absent or was overridden: other people's secrets"
)
@pytest.mark.parametrize("names", [("DENIED",), ("DENIED_ABSENT", "A_TOKEN"), ()])
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
def test_of_a_refused_container(node: Node, bundle: Bundle, real: str, adapter: str, names: tuple[str, ...]) -> None:
    write(node, deny=DENY)
    plant(bundle, *names, **({} if names else {"denied.example.com": SECRET}))
    log = node.directory / "runtime.log"
    container = guarded(adapter, real, node, bundle)
    container.options = ("--log", str(log))
    assert container.create() != 0
    said = container.output() + (log.read_text() if log.exists() else "")
    assert "denied" in said
    assert node.logged()[-1]["event"] == "container.denied"
    assert SECRET not in said + told(node)


BROKEN = {
    "a NUL": {"env": ["A_TOKEN=" + SECRET + "\0"]},
    "no string": {"env": ["A_TOKEN=" + SECRET, 1]},
    "an object": {"env": [{"A_TOKEN": SECRET}]},
    "no list": {"env": SECRET},
}


@pytest.mark.parametrize("process", BROKEN.values(), ids=BROKEN)
def test_of_a_container_that_cannot_be_judged(node: Node, bundle: Bundle, real: str, process: dict[str, Any]) -> None:
    write(node)
    bundle.spec["process"].update(process)
    bundle.save()
    log = node.directory / "runtime.log"
    container = Running(node.dispatcher(real), bundle, "--log", str(log))
    assert container.create() != 0
    assert node.logged()
    assert SECRET not in container.output() + log.read_text() + told(node)


@marks.hole(
    "A refusal of an `exec` with `--env NAME=VALUE` behind an unknown option named the value, in the log and "
    "to the engine",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize(
    "options", [("--env", f"A_TOKEN={SECRET}"), ("-te", f"A_TOKEN={SECRET}"), (f"--unknown={SECRET}", "x")]
)
def test_of_an_exec(node: Node, bundle: Bundle, options: tuple[str, ...]) -> None:
    write(node)
    plant(bundle)
    with Running(node.dispatcher(RUNTIMES["crun"]), bundle) as container:
        log = node.directory / "exec.log"
        done = run(container.runtime, "--log", str(log), "exec", *options, container.id, "/bin/env", check=False)
        assert "A_TOKEN" not in done.stdout
        said = done.stdout + done.stderr + (log.read_text() if log.exists() else "") + container.output()
    node.events.touch()
    assert SECRET not in said + told(node)


def test_explain_shows_it_on_a_terminal_and_not_as_data(node: Node, bundle: Bundle) -> None:
    write(node)
    plant(bundle, "A_TOKEN")
    shown = {
        form: run(str(REASSERT), "explain", str(bundle.directory), *node.options()[:4], "-o", form).stdout
        for form in ("table", "json")
    }
    assert SECRET in shown["table"]
    assert SECRET not in shown["json"]


def test_a_store_that_cannot_be_written_costs_the_hash_alone(node: Node, bundle: Bundle) -> None:
    write(node)
    plant(bundle, "A_TOKEN")
    (node.store / "event-key").unlink()
    run("mount", "--bind", str(node.store), str(node.store))
    run("mount", "-o", "remount,bind,ro", str(node.store))
    try:
        with Running(node.dispatcher(RUNTIMES["runc"]), bundle) as container:
            assert not any(each.startswith("A_TOKEN") for each in container.environ())
    finally:
        run("umount", str(node.store))
    [before] = [edit["before"] for edit in node.logged()[0]["edits"] if edit["name"] == "A_TOKEN"]
    assert before == [{"bytes": len(SECRET)}]
    assert os.listdir(node.store) != []
