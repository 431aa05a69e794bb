"""`explain` shows the decision that an adapter would make, with reasons and unknown conditions; it changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.policy.store import load
from hook.ops.explain import explain
from unit.support import CONTAINERD, bind, config, document, reassert

CA = {
    "name": "company-ca",
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "BAD_*", "absent": True}],
    "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}],
}
WEB = {
    "name": "web",
    "match": {"podSelector": {"matchLabels": {"tier": "web"}}, "ifUnknown": "Skip"},
    "env": [{"name": "W", "value": "1"}],
}
OTHER = {"name": "other", "match": {"images": ["x/*"]}, "env": [{"name": "O", "value": "1"}]}
RULES = (CA, WEB, OTHER)


class Files:
    """A bundle and a policy."""

    def __init__(self, directory: Path, *rules: dict[str, Any], **fields: Any) -> None:
        self.config, self.policy = directory / "config.json", directory / "policy.yaml"
        env = ["A=1", "CA=/tmp/x", "CA", "BAD_1=y"]
        self.config.write_text(json.dumps(config(env, [bind("/etc/ssl/certs", "/evil")], CONTAINERD)))
        self.policy.write_text(document(*rules, **fields))

    def files(self) -> list[Path]:
        return [path for path in self.config.parent.rglob("*") if path.is_file()]

    def explain(self, output: str, **options: bool) -> int:
        """Which changes nothing."""
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()}
        status = explain(str(self.config), str(self.policy), "/nowhere", output, **options)
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()} == before
        return status


def test_table_says_which_rules_apply_and_why(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Files(root_dir, *RULES).explain("table") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "container team-a/web-1/app (containerd, container or init or ephemeral)",
        "company-ca yes no conditions: every container",
        "web no podSelector is unknown here, counts as not met",
        "other no images registry.example/app:1 is not x/*",
        "company-ca env CA '/tmp/x', (no =) '/ca.pem'",
        "company-ca env BAD_1 'y' absent",
        "company-ca mount /etc/ssl /etc/ssl/certs from /evil /etc (rbind,rprivate,ro,rro)",
        "result started corrected",
    ):
        assert line in lines


def test_json_holds_the_whole_decision_of_the_adapter(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(root_dir, *RULES)
    files.explain("json")
    data = json.loads(capsys.readouterr().out)
    assert data["container"]["namespace"] == "team-a"
    assert {rule["name"]: (rule["applies"], rule["unknown"]) for rule in data["rules"]} == {
        "company-ca": (True, []),
        "web": (False, ["podSelector"]),
        "other": (False, []),
    }
    assert (data["outcome"], data["excluded"], data["policy"]["path"]) == ("started corrected", None, str(files.policy))
    spec = Spec(files.config.read_bytes(), "config.json")
    decided = Case("runtime", "0a", lambda: load(str(files.policy), f"{root_dir}/s")).decide(identify(spec), spec)
    assert [edit["name"] for edit in data["edits"]] == ["CA", "BAD_1", "/etc/ssl"]
    assert data["edits"] == [edit.describe() for edit in decided.edits]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"mode": "Audit"}, "started unchanged: mode is Audit"),
        ({"exclude": {"namespaces": ["team-*"]}}, "left alone: excluded by namespace team-a"),
    ],
)
def test_outcome_where_nothing_is_corrected(
    root_dir: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], outcome: str
) -> None:
    Files(root_dir, *RULES, **fields).explain("json")
    assert json.loads(capsys.readouterr().out)["outcome"] == outcome


def test_refusal_is_told_and_is_no_error_of_explain(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Files(root_dir, {**CA, "onConflict": "Deny"}).explain("table") == 0
    out = capsys.readouterr().out
    assert "denied     rule company-ca: env CA is reserved and was set to something else" in out
    assert "result     refused: rule company-ca: env CA" in out


def test_diff_is_what_the_wrapper_would_write(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Files(root_dir, *RULES).explain("diff")
    changed = [line for line in capsys.readouterr().out.splitlines() if re.match(r"[+-](?!\+\+|--)", line)]
    told = {line[0] + line[1:].strip(" ,") for line in changed}
    assert {'-"CA=/tmp/x"', '-"CA"', '-"BAD_1=y"', '+"CA=/ca.pem"', '+"destination": "/etc/ssl"'} <= told
    assert any(line.startswith('+"reassert/decision": ') for line in told)


def test_container_that_was_corrected_is_said_to_be(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else who looks at a bundle after the start is told that nothing was done."""
    files = Files(root_dir, CA)
    arguments = [f"--policy={files.policy}", f"--store={root_dir}/s", f"--events={root_dir}/e", "--", "create"]
    assert reassert("runtime", "--real=/bin/true", *arguments, "--bundle", str(root_dir), "0a").returncode == 0
    files.explain("table")
    assert capsys.readouterr().out.splitlines()[-1].startswith("result     corrected by reassert at create")


def test_mounts_in_gvisor_are_explained_as_runsc_gets_them(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option rro, and not as seen in the container: no look from outside tells what the sentry mounted."""
    files = Files(root_dir, CA)
    assert files.explain("table", gvisor=True) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "/etc (rbind,rprivate,ro) " in said
    assert "started corrected. gVisor's kernel makes the mounts" in said


def test_draft_that_a_node_would_refuse_is_explained_with_a_warning(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(root_dir, *RULES)
    files.policy.chmod(0o666)
    assert files.explain("table") == 0
    assert "warning: on a node this file would be refused" in capsys.readouterr().err
