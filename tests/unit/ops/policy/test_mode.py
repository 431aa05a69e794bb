"""`policy audit` and `policy enforce` set one value of the policy file, whatever the file looks like."""

from __future__ import annotations

import json
import re
from pathlib import Path

import marks
import pytest

from hook.compile.source import parse
from hook.node.change.program import PRESETS
from hook.ops.policy import mode
from unit.ownmachine import Machine
from unit.support import ROOT, called, document

RULES = '  rules:\n  - name: r\n    env: [{name: A, value: "1"}]\n'
HEAD = "apiVersion: reassert/v1\nkind: NodePolicy # comment\n"

FILES = {
    "given": f"{HEAD}spec:\n  # why\n  mode: Enforce   # until Monday\n{RULES}",
    "quoted": f'{HEAD}spec:\n  mode: "Enforce"\n{RULES}',
    "left out": f"{HEAD}spec: # the node's\n\n  # rules\n{RULES}",
    "empty": f"{HEAD}spec:\n  mode:\n{RULES}",
    "of a rule": f"{HEAD}spec:\n{RULES}    mode: Enforce\n",
    "at the end": f"{HEAD}spec:\n{RULES}  mode: Enforce",
    "flow": HEAD + 'spec: {rules: [{name: r, env: [{name: A, value: "1"}]}]}\n',
    "json": document({"name": "r", "env": [{"name": "A", "value": "1"}]}),
    "json with a mode": document({"name": "r", "env": [{"name": "A", "value": "1"}]}, mode="Enforce"),
    "four spaces": HEAD + re.sub("^  ", "    ", f"spec:\n{RULES}", flags=re.MULTILINE),
    "carriage returns": f"{HEAD}spec:\n{RULES}".replace("\n", "\r\n"),
}


def data(text: str) -> object:
    return json.loads(json.dumps(parse("p", text.encode()).data))


@pytest.mark.parametrize("name", [name for name in FILES if name != "empty"])
def test_only_the_mode_changes(name: str) -> None:
    text, _ = mode.edited(parse("p", FILES[name].encode()), "Audit")
    was = data(FILES[name])
    assert isinstance(was, dict)
    assert data(text) == {**was, "spec": {**was["spec"], "mode": "Audit"}}
    added = "mode: Audit"
    lines = [line for line in text.splitlines(keepends=True) if line not in FILES[name].splitlines(keepends=True)]
    assert len(lines) == 1, "every other line is as it was"
    assert added in lines[0].replace('"', "")
    back, _ = mode.edited(parse("p", text.encode()), "Enforce")
    assert data(back) == {**was, "spec": {**was["spec"], "mode": "Enforce"}}
    if "Enforce" in FILES[name] and name != "of a rule":
        assert back == FILES[name]


def test_examples_and_the_default_policy_are_edited() -> None:
    files = [ROOT / "config/policy.yaml", *(ROOT / "config/examples").glob("*.yaml")]
    for path in files:
        source = parse(str(path), path.read_bytes())
        for wanted in ("Audit", "Enforce"):
            text, line = mode.edited(source, wanted)
            assert f"mode: {wanted}" in text.splitlines()[line - 1]


def test_a_file_that_would_mean_something_else_is_not_edited() -> None:
    source = parse("p", f"{HEAD}spec:\n  mode: |-\n    Enforce\n{RULES}".encode())
    with pytest.raises(mode.ModeNotSetError, match=r"p:4: .*write `mode: Audit` below `spec:` by hand"):
        mode.edited(source, "Audit")


@marks.promise(
    "`policy audit` and `policy enforce` change one value of the policy file, and say what is in force", about="Policy"
)
def test_the_commands_say_what_is_in_force(root_dir: Path) -> None:
    file, store = root_dir / "policy.yaml", root_dir / "store"
    file.write_text(FILES["given"])
    file.chmod(0o640)
    options = ("--policy", str(file), "--store", str(store))
    done = called("policy", "audit", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{file}:5: mode: Enforce becomes Audit\n{file}: in force, 1 rule, Audit, sha256 ")
    assert "corrects and refuses no container" in done.stdout
    assert file.read_text() == FILES["given"].replace("mode: Enforce", "mode: Audit")
    assert file.stat().st_mode & 0o777 == 0o640
    assert f"{file}:5: mode: Audit stays" in called("policy", "audit", *options).stdout
    assert "Audit becomes Enforce" in called("policy", "enforce", *options).stdout


@pytest.mark.parametrize("name", [name for name in PRESETS if name])
def test_a_preset_is_printed_in_audit_mode(name: str) -> None:
    done = called("policy", "preset", name)
    assert done.returncode == 0, done.stderr
    spec = data(done.stdout)["spec"]  # type: ignore[index]  # a valid policy has it
    assert spec["mode"] == "Audit"


def test_a_policy_that_is_invalid_is_named_and_left_alone(root_dir: Path) -> None:
    file = root_dir / "policy.yaml"
    file.write_text(FILES["given"].replace("rules", "rulez"))
    done = called("policy", "audit", "--policy", str(file), "--store", str(root_dir / "store"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}:6:3: error: " in done.stderr
    assert file.read_text() == FILES["given"].replace("rules", "rulez")
    assert [path.name for path in root_dir.iterdir()] == ["policy.yaml"]


def test_the_charts_policy_is_the_charts_to_set(machine: Machine) -> None:
    machine.file("/etc/reassert/policy.yaml", FILES["given"])
    machine.file("/var/lib/reassert-kubernetes/present", "")
    with pytest.raises(mode.ModeNotSetError, match=r"--set policy.audit=true .*touch /etc/reassert/hold` first"):
        mode.set_mode("/etc/reassert/policy.yaml", "/var/lib/reassert", "Audit")
    machine.file("/etc/reassert/hold", "")
    assert mode.set_mode("/etc/reassert/policy.yaml", "/var/lib/reassert", "Audit") == 0
