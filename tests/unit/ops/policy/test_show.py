"""`policy show` prints the policy in force as a policy file, and what is held back."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.compile.compiler import compile_bytes, rule_to_line
from hook.compile.in_force import refresh
from hook.ops.policy.show import NotPermitted, effective, show
from unit.support import ROOT, document, examples, policy

pytestmark = marks.promise("The compiled policy equals the file, and `policy show` prints it as a policy file")

RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}


def shown(source: Path, store: Path, output: str) -> tuple[int, str]:
    """Exit status and output."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = show(str(source), str(store), output)
    return status, out.getvalue()


def lines(text: str) -> list[list[object]]:
    """The rules of a policy file, compiled."""
    return [rule_to_line(rule) for rule in compile_bytes("p", text.encode()).policy().candidates(None)]


@pytest.mark.parametrize(
    "path",
    [ROOT / "config/policy.yaml", *sorted((ROOT / "config/examples").glob("*.yaml"))],
    ids=lambda path: path.name,
)
def test_shown_policy_compiles_to_the_same_policy(path: Path, root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.write_bytes(path.read_bytes())
    refresh(str(source), str(root_dir))
    status, text = shown(source, root_dir, "yaml")
    assert status == 0
    assert lines(text) == lines(path.read_text())


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


@examples(60)
@given(st.lists(texts, max_size=3), st.booleans(), st.booleans())
def test_every_value_survives_being_shown(values: list[str], skip: bool, read_only: bool) -> None:
    rule: dict[str, Any] = {
        "name": "r",
        "match": {"podSelector": {"matchLabels": {"a": "b"}}, "ifUnknown": "Skip" if skip else "Enforce"},
        "env": [{"name": f"V{number}", "value": value} for number, value in enumerate(values)],
        "mounts": [{"hostPath": "/h", "mountPath": "/m", "readOnly": read_only, "options": ["bind", "noexec"]}],
        "deviceAllocations": {"devices": read_only, "exclusive": ["/dev/gpu*", "v/gpu"]},
        "onConflict": "Deny",
    }
    log = {"maxSizeMiB": 8, "keep": 2, "journal": read_only}
    original = policy(rule, exclude={"containerTypes": ["sandbox"]}, **({"eventLog": log} if skip else {}))
    again = compile_bytes("p", json.dumps(effective(original)).encode()).policy()
    assert [rule_to_line(one) for one in again.candidates(None)] == [
        rule_to_line(one) for one in original.candidates(None)
    ]
    assert again.excluded_types == ["sandbox"]


def test_broken_edit_that_is_held_back_is_shown_and_ends_with_1(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.write_text(document(RULE))
    refresh(str(source), str(root_dir))
    source.write_text("spec: [")
    refresh(str(source), str(root_dir))
    status, text = shown(source, root_dir, "yaml")
    assert status == 1
    assert f"# HELD BACK: the last good policy stays in force: {source}:1:8: error: not YAML" in text
    assert "# held since: 20" in text
    assert "name: r\n" in text
    status, text = shown(source, root_dir, "json")
    data = json.loads(text)
    assert (status, data["policy"]["spec"]["rules"][0]["name"]) == (1, "r")
    assert data["status"]["heldBack"].startswith("the last good policy")


def test_node_without_a_policy_is_told_what_that_means(root_dir: Path) -> None:
    status, text = shown(root_dir / "policy.yaml", root_dir, "yaml")
    assert status == 1
    assert f"# NO POLICY: {root_dir}/policy.yaml: No such file or directory" in text
    assert "containers of kube-system start; all others are refused" in text
    assert json.loads(shown(root_dir / "policy.yaml", root_dir, "json")[1])["policy"] is None


@pytest.mark.users
def test_a_user_who_cannot_read_the_store_is_told_so(root_dir: Path) -> None:
    """Not "NO POLICY, all containers are refused": that is not what is in force."""
    source, kept = root_dir / "policy.yaml", root_dir / "store"
    source.write_text(document(RULE))
    refresh(str(source), str(kept))
    assert kept.stat().st_mode & 0o777 == 0o700
    for hidden in (kept, source):
        source.chmod(0o644 if hidden == kept else 0o600)
        kept.chmod(0o700 if hidden == kept else 0o755)
        os.seteuid(65534)
        try:
            with pytest.raises(NotPermitted, match=f"this user may not read {hidden}, .*: sudo reassert policy show"):
                shown(source, kept, "yaml")
        finally:
            os.seteuid(0)
    assert shown(source, kept, "yaml")[0] == 0
