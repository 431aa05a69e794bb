"""`status --all`: every part has a finding, with the command against it, and a bundle has no value of a container."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile.compiler import compile_bytes
from hook.core.base.errors import ReassertError
from hook.core.base.finding import ERROR, NOTE, OK
from hook.core.base.system import timestamp
from hook.node.agent import Agent
from hook.node.change.record import Record
from hook.ops.audit.audit import Audit, ContainerReport, Round
from hook.ops.health import bundle, checks, more
from hook.ops.health.node import Node
from hook.ops.health.status import Status
from unit.ownmachine import Machine
from unit.support import document

pytestmark = marks.promise(
    "`status --all` names the command that fixes what is wrong; its bundle has no env value but the policy's",
    about="In force",
)

OWNED = "/etc/ssl/certs/ca-certificates.crt"
SECRETS = ("s3cr3t-plain", "two words of s3cr3t", 's3cr3t "quoted" \\ é', "s3cr3t\nline", "s3cr3t;=,\"}'")
POLICY = document(
    {"name": "ca", "env": [{"name": "CA", "value": OWNED}, {"name": "TOKEN_*", "absent": True}]},
    {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"deviceAllocation": {"default": "void"}}}]},
)


def seen(policy_file: Path, *events: dict[str, Any]) -> more.Seen:
    policy_file.write_text(POLICY)
    policy = compile_bytes(str(policy_file), POLICY.encode()).policy()
    known = Round(policy)
    audited = Audit(known, [ContainerReport("0a", "a/b/c", "a", "b", "containerd", 7, "drifted")])
    return more.Seen(Status(Node(Record("/nowhere", {}), [], {}), []), known, audited, list(events))


def edit(before: Any, after: str | None, **more: Any) -> dict[str, Any]:
    described = {"rule": "ca", "kind": "env", "name": "CA", "before": before, "after": after, **more}
    return {"event": "container.edited", "id": "0a", "edits": [described], "denials": [], "errors": []}


def test_every_part_has_a_finding_and_what_is_wrong_a_command(tmp_path: Path, machine: Machine) -> None:
    machine.file("/etc/reassert/policy.yaml", POLICY)
    node = Node(Record("/nowhere", {}), [], {})
    found = [*checks.all_of(node), *more.checks(seen(tmp_path / "p"))]
    parts = {"engine", "agent", "permissions", "checkpoint", "disk", "policy", "clock", "last errors"}
    assert {each.part for each in found} == parts
    assert {each.severity for each in more.checks(seen(tmp_path / "p"))} <= {OK, NOTE}, "status does not look at these"
    Path("/etc/reassert/policy.yaml").chmod(0o666)
    [writable] = [each for each in checks.all_of(node) if each.severity == ERROR]
    assert (writable.part, writable.remedy) == ("permissions", "chmod go-w /etc/reassert/policy.yaml")
    assert writable.place == "/etc/reassert/policy.yaml"


def test_no_agent_is_worth_a_note_unless_it_was_asked_for() -> None:
    for cold, severity in (("--no-agent", OK), ("this node's init is not systemd", NOTE)):
        node = Node(Record("/nowhere", {}), [], {})
        node.__dict__["agent"] = Agent(cold)
        assert [each.severity for each in checks.agent(node)] == [severity]


def test_what_a_tried_rule_would_refuse_is_not_why_a_container_was_refused(tmp_path: Path) -> None:
    """With a draft, the tried rule's reasons come first."""
    tried = {"rule": "try", "message": "of the tried rule", "mode": "Audit"}
    event = {**edit(None, OWNED, mode="Audit", applied=False), "event": "container.denied", "tried": True}
    event |= {"timestamp": timestamp(time.time_ns()), "denials": [tried, {"rule": "ca", "message": "of the enforced"}]}
    shown = seen(tmp_path / "p", event)
    [last] = [each for each in more.checks(shown) if each.part == "last errors"]
    assert last.text.endswith(": of the enforced")
    assert last.remedy == "reassert events --event container.denied --since 24h"
    kept = bundle.harmless(event)
    assert (kept["tried"], kept["edits"][0]["mode"], kept["edits"][0]["applied"]) == (True, "Audit", False)
    assert [reason.get("mode") for reason in kept["denials"]] == ["Audit", None]


@marks.hole(
    "The bundle of `doctor` showed env values of containers whose names have unusual characters",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_of_a_container_gets_into_a_bundle(root_dir: Path, secret: str, machine: Machine) -> None:
    """Of events and of a journal: only fields that are known to be harmless are in it."""
    described = edit([secret, OWNED], OWNED, truncated=[{"at": "/edits/0/before/0", "sha256": "ab"}])
    events = [
        described,
        edit([secret], secret, **{"from": secret}),
        {**edit([], None), "event": "container.denied", "unknown": secret, "warning": f"A={secret}"},
        {"event": "container.error", "errors": [{"rule": "x", "message": f"process file: -P.w é={secret} is odd"}]},
        {"event": "x", "edits": secret, "denials": {"a": secret}, "truncated": [{"at": secret}]},
    ]
    lines = [*map(json.dumps, events), f"TOKEN={secret}", f'  File "/x.py", line 3, in f {secret}']
    lines += ['  File "/usr/lib/x.py", line 31, in work', f"ValueError: {secret}", json.dumps([secret])]
    head, value = "timestamp=2026-01-01T00:00:00Z level=warning event", json.dumps(f"A={secret} b")
    lines += [f"{head}=start.cold reason=late id=0a error={value} text={value} duration_ms=1.5 n={value}"]
    lines += [f'{head}=policy.held error="/p:3: a \\"word\\""', f"{head}=container.undecided adapter=nri error={value}"]
    lines += [
        f"{head}=start.cold text='{secret}",
        json.dumps({"event": "start.cold", "id": [secret], "error": secret}),
    ]
    records: list[dict[str, Any]] = [{"MESSAGE": line, "_PID": "77"} for line in lines]
    records += [{"MESSAGE": "Started reassert-agent.service.", "_PID": "1"}, {"MESSAGE": [*secret.encode()]}, {}]
    machine.program("journalctl", f"cat {machine.file('/run/said', chr(10).join(map(json.dumps, records)))}")
    path = root_dir / "bundle.tar.gz"
    count = bundle.write(str(path), "page\n", "{}", seen(root_dir / "p", *events))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as found:
        texts = {member.name: found.extractfile(member).read().decode() for member in found}  # type: ignore[union-attr]  # all are files
    assert len(texts) == count
    assert not [name for name, text in texts.items() if "s3cr3t" in text or '"ab"' in text]
    first = json.loads(texts["reassert-bundle/events.jsonl"].splitlines()[0])
    assert first["edits"] == [{"rule": "ca", "kind": "env", "name": "CA"}]
    journal = texts["reassert-bundle/journal/reassert-agent.service.txt"]
    assert json.loads(journal.splitlines()[0]) == first
    assert '  File "/usr/lib/x.py", line 31, in work\n' in journal
    assert "Started reassert-agent.service.\n" in journal
    at = {"timestamp": "2026-01-01T00:00:00Z", "level": "warning"}
    said = [json.loads(line) for line in journal.splitlines() if line.startswith('{"timestamp": "2026-01-01')]
    assert said[0] == {**at, "event": "start.cold", "reason": "late", "id": "0a", "duration_ms": "1.5"}
    assert said[1] == {**at, "event": "policy.held", "error": '/p:3: a "word"'}
    assert said[2]["event"] == "container.undecided"
    with pytest.raises(ReassertError, match="File exists"):
        bundle.write(str(path), "", "{}", seen(root_dir / "p"))
