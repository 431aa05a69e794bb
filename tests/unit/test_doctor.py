"""`reassert doctor`: every part has a line with what mends it, and a bundle has no value of a container."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.errors import ReassertError
from hook.core.base.system import timestamp
from hook.core.container.identity import Identity
from hook.core.policy import store
from hook.core.policy.compiler import compile_bytes
from hook.node.agent import Agent
from hook.node.change.record import Record
from hook.node.status import Status
from hook.ops.audit.audit import Audit, Finding
from hook.ops.audit.inventory import Running
from hook.ops.audit.why import Round
from hook.ops.doctor import bundle
from hook.ops.doctor.checks import BAD, OK, Seen, checks, remedy
from hook.ops.doctor.hide import HIDDEN, Hider
from unit.support import document

OWNED = "/etc/ssl/certs/ca-certificates.crt"
SECRETS = ("s3cr3t-plain", "two words of s3cr3t", 's3cr3t "quoted" \\ é', "s3cr3t\nline", "s3cr3t;=,\"}'")
POLICY = document(
    {"name": "ca", "env": [{"name": "CA", "value": OWNED}, {"name": "TOKEN_*", "absent": True}]},
    {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"deviceAllocation": {"default": "void"}}}]},
)


def seen(policy_file: Path, *events: dict[str, Any], **status: Any) -> Seen:
    policy_file.write_text(POLICY)
    policy = compile_bytes(str(policy_file), POLICY.encode()).policy()
    known = Round(policy)
    audited = Audit(known, [Finding("0a", "a/b/c", "a", "b", "containerd", 7, "drifted")])
    return Seen(Status(Record("/nowhere", {}), **status), known, audited, list(events))


def edit(before: Any, after: str | None, **more: Any) -> dict[str, Any]:
    described = {"rule": "ca", "kind": "env", "name": "CA", "before": before, "after": after, **more}
    return {"event": "container.edited", "id": "0a", "edits": [described], "denials": [], "errors": []}


def test_every_part_has_a_line_and_what_is_bad_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SOURCE", str(tmp_path / "p"))  # a file that is there; the machine may have none
    found = checks(seen(tmp_path / "p", problems=["containerd: x out of date: run `reassert node install`, which y"]))
    parts = ("engines", "adapters", "warm path", "policy", "permissions", "containers", "checkpoint", "clock", "disk")
    assert list(dict.fromkeys(check.part for check in found)) == [*parts, "last errors"]
    assert all(check.remedy for check in found if check.state == BAD)
    assert next(check.remedy for check in found if "out of date" in check.text) == "reassert node install"
    assert next(check.state for check in found if check.part == "policy") == OK
    assert next(check for check in found if check.part == "containers").remedy == "reassert audit"


def test_an_agent_is_offered_where_one_can_run(tmp_path: Path) -> None:
    for cold, command in (("--no-agent", "reassert node install --agent"), ("this node's init is not systemd", "")):
        found = checks(seen(tmp_path / "p", agent=Agent(cold)))
        assert [check.remedy for check in found if check.part == "warm path"] == [command]


def test_the_command_of_a_problem_is_found() -> None:
    assert remedy("the agent is old: systemctl restart reassert-agent.service") == (
        "systemctl restart reassert-agent.service"
    )
    assert remedy("hostPath /x is missing (onMissingSource: Fail). Run: reassert trust build") == "reassert trust build"
    assert remedy("nothing named") == "reassert node status"


def test_what_a_tried_rule_would_refuse_is_not_why_a_container_was_refused(tmp_path: Path) -> None:
    """With a draft, the tried rule's reasons come first."""
    tried = {"rule": "try", "message": "of the tried rule", "mode": "Audit"}
    event = {**edit(None, OWNED, mode="Audit", applied=False), "event": "container.denied", "tried": True}
    event |= {"timestamp": timestamp(time.time_ns()), "denials": [tried, {"rule": "ca", "message": "of the enforced"}]}
    shown = seen(tmp_path / "p", event)
    text = next(check.text for check in checks(shown) if check.part == "last errors" and "denied" in check.text)
    assert text.endswith(": of the enforced")
    kept = Hider(shown.known.policy).event(event)
    assert (kept["tried"], kept["edits"][0]["mode"], kept["edits"][0]["applied"]) == (True, "Audit", False)
    assert [reason.get("mode") for reason in kept["denials"]] == ["Audit", None]


def test_last_errors_are_shown_by_a_command_of_reassert(tmp_path: Path) -> None:
    now = timestamp(time.time_ns())
    denied = {"event": "container.denied", "timestamp": now, "denials": [{"rule": "x", "message": "no"}]}
    last = [check for check in checks(seen(tmp_path / "p", denied)) if check.part == "last errors"]
    assert [check.remedy for check in last] == ["reassert events --event container.denied --since 24h"]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_of_a_container_gets_into_a_bundle(
    root_dir: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of config.json, events, process files and lines of a journal, also of a container that is gone."""
    env = [f"TOKEN={secret}", f"CA={OWNED}"]
    config = json.dumps({"process": {"env": env, "args": ["x", secret]}, "annotations": {"a": secret}, "mounts": []})
    (root_dir / "config.json").write_text(config)
    where = (str(root_dir), "", 0.0, "", str(root_dir / "config.json"))
    running = Running("0a" * 32, 0, 0, *where, identity=Identity("containerd", True, "a", "b"))
    events = [
        edit([secret, None, OWNED], OWNED, truncated=[{"at": "/edits/0/before/0", "sha256": "ab"}]),
        edit([secret], secret, **{"from": secret}),
        {**edit([], None), "event": "container.denied", "unknown": secret, "warning": f"A={secret}"},
        {"event": "container.error", "errors": [{"rule": "x", "message": f"process file: TOKEN={secret} is odd"}]},
        {"event": "x", "edits": secret, "denials": {"a": secret}, "truncated": [{"at": secret}]},
    ]
    lines = [json.dumps(event) for event in events]
    lines += [f"TOKEN={secret}".replace("\n", " "), *f'env ["TOKEN={secret}"] of x'.split("\n")]
    lines += [json.dumps(f"TOKEN={secret}"), json.dumps({"process": {"env": env}}), f"a {{'TOKEN': '{secret}'}}"]
    said = subprocess.CompletedProcess([], 0, "\n".join(lines), "")
    monkeypatch.setattr("hook.node.systemd.available", lambda: True)
    monkeypatch.setattr("hook.node.systemd.command", lambda *_: said)
    for number, containers in enumerate(([running], [])):
        path = root_dir / f"{number}.tar.gz"
        names = bundle.write(str(path), "page\n", {}, seen(root_dir / "p", *events), containers)
        assert path.stat().st_mode & 0o777 == 0o600
        with tarfile.open(path) as found:
            texts = {member.name: found.extractfile(member).read().decode() for member in found}  # type: ignore[union-attr]  # all are files
        assert len(texts) == len(names)
        for name, text in texts.items():
            assert "s3cr3t" not in text, (name, text)
        assert OWNED in texts["reassert-doctor/events.jsonl"]
        assert '"ab"' not in texts["reassert-doctor/events.jsonl"], "a hash lets a short value be guessed"
        assert HIDDEN in texts["reassert-doctor/journal/reassert-agent.service.txt"]
        with pytest.raises(ReassertError, match="File exists"):
            bundle.write(str(path), "", {}, seen(root_dir / "p"), [])


def test_the_policys_own_values_stay(tmp_path: Path) -> None:
    hider = Hider(seen(tmp_path / "p").known.policy, [OWNED, "void", "value-of-a-pod"])
    assert hider.text(f"CA={OWNED} is not value-of-a-pod") == f"CA={OWNED} is not {HIDDEN}"
    assert hider.event(edit(["x", OWNED], OWNED))["edits"][0] == {
        "rule": "ca",
        "kind": "env",
        "name": "CA",
        "before": [HIDDEN, OWNED],
        "after": OWNED,
    }


@pytest.mark.parametrize("name", ["PW", "1PW", "p.w", "-P", "%PW%", "(P)", "{P}", "P:W", "é", "FÜ", "a b"])
def test_the_value_of_any_name_that_an_env_may_have_is_hidden(name: str, tmp_path: Path) -> None:
    hider = Hider(seen(tmp_path / "p").known.policy)
    assert hider.text(f"message: cannot set {name}=s3cr3t") == f"message: cannot set {name}={HIDDEN}"
    assert "s3cr3t" not in hider.text(f'{{"env": ["{name}=s3cr3t"]}}')


def test_a_pod_cannot_hide_its_events_with_a_value_of_its_own(tmp_path: Path) -> None:
    hider = Hider(seen(tmp_path / "p").known.policy, ["container.denied", '"event": "container.denied"', "team-a"])
    event = {"event": "container.denied", "container": {"namespace": "team-a"}}
    assert json.loads(hider.line(json.dumps(event)))["event"] == "container.denied"
    assert hider.event(event)["container"] == {"namespace": "team-a"}
