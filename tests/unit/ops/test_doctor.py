"""`reassert doctor`: every part has a line with what mends it, and a bundle has no value of a container."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.errors import ReassertError
from hook.core.base.system import timestamp
from hook.core.policy.compiler import compile_bytes
from hook.node.agent import Agent
from hook.node.change.record import Record
from hook.node.status import Status
from hook.ops.audit.audit import Audit, ContainerReport, Round
from hook.ops.doctor import bundle
from hook.ops.doctor.checks import BAD, OK, NodeState, checks, remedy
from unit.ownmachine import Machine
from unit.support import document

OWNED = "/etc/ssl/certs/ca-certificates.crt"
SECRETS = ("s3cr3t-plain", "two words of s3cr3t", 's3cr3t "quoted" \\ é', "s3cr3t\nline", "s3cr3t;=,\"}'")
POLICY = document(
    {"name": "ca", "env": [{"name": "CA", "value": OWNED}, {"name": "TOKEN_*", "absent": True}]},
    {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"deviceAllocation": {"default": "void"}}}]},
)


def seen(policy_file: Path, *events: dict[str, Any], **status: Any) -> NodeState:
    policy_file.write_text(POLICY)
    policy = compile_bytes(str(policy_file), POLICY.encode()).policy()
    known = Round(policy)
    audited = Audit(known, [ContainerReport("0a", "a/b/c", "a", "b", "containerd", 7, "drifted")])
    return NodeState(Status(Record("/nowhere", {}), **status), known, audited, list(events))


def edit(before: Any, after: str | None, **more: Any) -> dict[str, Any]:
    described = {"rule": "ca", "kind": "env", "name": "CA", "before": before, "after": after, **more}
    return {"event": "container.edited", "id": "0a", "edits": [described], "denials": [], "errors": []}


def test_every_part_has_a_line_and_what_is_bad_a_command(tmp_path: Path, machine: Machine) -> None:
    machine.file("/etc/reassert/policy.yaml", POLICY)
    found = checks(seen(tmp_path / "p", problems=["containerd: x out of date: run `reassert node install`, which y"]))
    parts = ("engines", "adapters", "warm path", "policy", "permissions", "containers", "checkpoint", "clock", "disk")
    assert list(dict.fromkeys(check.part for check in found)) == [*parts, "last errors"]
    assert [check.text for check in found if check.state == BAD and not check.remedy] == [
        "no engine is found on this node"
    ]
    assert next(check.remedy for check in found if "out of date" in check.text) == "reassert node install"
    assert next(check.state for check in found if check.part == "policy") == OK
    assert next(check for check in found if check.part == "containers").remedy == "reassert audit"
    for cold, command in (("--no-agent", "reassert node install --agent"), ("this node's init is not systemd", "")):
        found = checks(seen(tmp_path / "p", agent=Agent(cold)))
        assert [check.remedy for check in found if check.part == "warm path"] == [command]


def test_the_command_of_a_problem_is_found() -> None:
    assert remedy("the agent is old: systemctl restart reassert-agent.service") == (
        "systemctl restart reassert-agent.service"
    )
    assert remedy("hostPath /x is missing (onMissingSource: Fail). Run: reassert trust build") == "reassert trust build"
    assert remedy("/x is writable by others (mode 0777); only root may write it (chmod go-w /x)") == "chmod go-w /x"
    assert remedy("nothing named") == ""


def test_what_a_tried_rule_would_refuse_is_not_why_a_container_was_refused(tmp_path: Path) -> None:
    """With a draft, the tried rule's reasons come first."""
    tried = {"rule": "try", "message": "of the tried rule", "mode": "Audit"}
    event = {**edit(None, OWNED, mode="Audit", applied=False), "event": "container.denied", "tried": True}
    event |= {"timestamp": timestamp(time.time_ns()), "denials": [tried, {"rule": "ca", "message": "of the enforced"}]}
    shown = seen(tmp_path / "p", event)
    [last] = [check for check in checks(shown) if check.part == "last errors"]
    assert last.text.endswith(": of the enforced")
    assert last.remedy == "reassert events --event container.denied --since 24h"
    kept = bundle.harmless(event)
    assert (kept["tried"], kept["edits"][0]["mode"], kept["edits"][0]["applied"]) == (True, "Audit", False)
    assert [reason.get("mode") for reason in kept["denials"]] == ["Audit", None]


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
    records: list[dict[str, Any]] = [{"MESSAGE": line, "_PID": "77"} for line in lines]
    records += [{"MESSAGE": "Started reassert-agent.service.", "_PID": "1"}, {"MESSAGE": [*secret.encode()]}, {}]
    machine.program("journalctl", f"cat {machine.file('/run/said', chr(10).join(map(json.dumps, records)))}")
    path = root_dir / "bundle.tar.gz"
    count = bundle.write(str(path), "page\n", {}, seen(root_dir / "p", *events))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as found:
        texts = {member.name: found.extractfile(member).read().decode() for member in found}  # type: ignore[union-attr]  # all are files
    assert len(texts) == count
    assert not [name for name, text in texts.items() if "s3cr3t" in text or '"ab"' in text]
    first = json.loads(texts["reassert-doctor/events.jsonl"].splitlines()[0])
    assert first["edits"] == [{"rule": "ca", "kind": "env", "name": "CA"}]
    journal = texts["reassert-doctor/journal/reassert-agent.service.txt"]
    assert json.loads(journal.splitlines()[0]) == first
    assert '  File "/usr/lib/x.py", line 31, in work\n' in journal
    assert "Started reassert-agent.service.\n" in journal
    with pytest.raises(ReassertError, match="File exists"):
        bundle.write(str(path), "", {}, seen(root_dir / "p"))
