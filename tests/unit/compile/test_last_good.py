"""The last good policy, over versions: tests/fixtures/stores has what 0.1.0, 0.2.0 and 0.3.0 compiled of its policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import Node

from hook.compile.last_good import FORMAT_OF_0_3, earlier_path, text_path
from hook.core.policy.model import Policy
from hook.core.policy.store import STORE_FORMAT, store_path
from unit.support import ROOT, document

pytestmark = marks.promise(
    "An upgrade from each release, and a downgrade, keep the last good policy in force where the program "
    "refuses the policy file, and a package that refuses it does not become the program",
    about="Policy",
)

STORES = ROOT / "tests/fixtures/stores"
SAME = STORES / "policy.yaml"
RELEASES = ("0.1.0", "0.2.0", "0.3.0")

REFUSED = SAME.read_text().replace("{name: PYTHONHTTPSVERIFY, absent: true}", "{name: HOME, absent: true}")
"""Valid for 0.3; this version refuses it."""

NEWER = SAME.read_text().replace("  rules:", "  fieldOfTheNextVersion: true\n  rules:")


class Upgraded(Node):
    """One whose store another release may have written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, policy="")
        self.store.mkdir(mode=0o700)
        self.own, self.earlier, self.text = (
            Path(path(str(self.policy), str(self.store))) for path in (store_path, earlier_path, text_path)
        )

    def put(self, release: str) -> None:
        """What a release left in the store."""
        header, _, rules = (STORES / f"{release}.json").read_text().partition("\n")
        self.earlier.write_text(json.dumps({**json.loads(header), "source": str(self.policy)}) + "\n" + rules)

    def load(self) -> Policy:
        """What a start gets after the compiler ran."""
        self.compile()
        return super().load()


@pytest.fixture
def node(root_dir: Path) -> Upgraded:
    return Upgraded(root_dir)


def content(policy: Policy) -> list[tuple[Any, ...]]:
    """What the rules of a policy reserve."""
    return [
        (
            *(rule.name, rule.conditions, rule.deny, rule.allocations, rule.is_audited),
            [(entry.name, entry.as_written()) for entry in rule.env],
            [(mount.source, mount.destination, mount.options, mount.allow_below) for mount in rule.mounts],
        )
        for rule in policy.candidates(None)
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("text", [REFUSED, "kind: typo\n", ""])
def test_an_upgrade_keeps_the_last_good_policy_of_each_release(node: Upgraded, release: str, text: str) -> None:
    """With a policy file that this version refuses, and with one that the release already held back."""
    node.policy.write_text(SAME.read_text())
    wanted = content(node.load())
    for path in node.store.iterdir():
        path.unlink()
    node.put(release)
    before = node.earlier.read_bytes()
    node.policy.write_text(text)
    policy = node.load()
    assert policy.missing == ""
    assert "the last good policy stays in force" in policy.warning
    assert content(policy) == wanted
    assert node.earlier.read_bytes() == before, "the release, if it runs on, has its own"
    node.policy.write_text(SAME.read_text())
    assert node.load().warning == ""


def test_0_3_gets_the_policy_in_its_own_form(node: Upgraded) -> None:
    """As 0.3.0 itself compiles the policy; without a key, so that it reads the policy file first."""
    node.policy.write_text(SAME.read_text())
    node.load()
    ours, theirs = (path.read_text().splitlines() for path in (node.earlier, STORES / "0.3.0.json"))
    header, wanted = json.loads(ours[0]), json.loads(theirs[0])
    of_this_node = dict.fromkeys(("version", "source", "key", "compiledAt"))
    assert {**header, **of_this_node} == {**wanted, **of_this_node}
    assert (header["format"], header["key"]) == (FORMAT_OF_0_3, None)
    assert ours[1:] == theirs[1:]


def test_what_0_3_cannot_do_leaves_its_last_policy(node: Upgraded) -> None:
    node.put("0.3.0")
    before = node.earlier.read_bytes()
    node.policy.write_text(document({"name": "r", "mounts": [{"emptyDir": {}, "mountPath": "/scratch"}]}))
    assert node.load().warning == ""
    assert node.earlier.read_bytes() == before


def test_the_next_version_compiles_the_text(node: Upgraded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever form it has: it does not read this one's."""
    node.policy.write_text(SAME.read_text())
    wanted = content(node.load())
    for module in ("core.policy.store", "compile.in_force", "compile.last_good"):
        monkeypatch.setattr(f"hook.{module}.STORE_FORMAT", STORE_FORMAT + 1)
    node.earlier.unlink()
    node.policy.write_text("kind: typo\n")
    policy = node.load()
    assert (policy.missing, content(policy)) == ("", wanted)


def test_a_downgrade_keeps_the_last_policy_that_this_version_reads(node: Upgraded) -> None:
    """The next version took a policy with its own new field: this version's last good policy stays in force."""
    node.policy.write_text(SAME.read_text())
    wanted = content(node.load())
    node.text.write_text(NEWER)
    node.policy.write_text(NEWER)
    policy = node.load()
    assert "fieldOfTheNextVersion" in policy.warning
    assert (policy.missing, content(policy)) == ("", wanted)


def test_the_newest_policy_that_can_be_read_stays(node: Upgraded) -> None:
    """Upgrade, downgrade to 0.3, an edit there, upgrade with a broken file."""
    node.policy.write_text(document({"name": "older", "env": [{"name": "A", "value": "1"}]}))
    node.load()
    node.put("0.3.0")
    header, _, rules = node.earlier.read_text().partition("\n")
    node.earlier.write_text(
        json.dumps({**json.loads(header), "compiledAt": "2999-01-01T00:00:00.000000Z"}) + "\n" + rules
    )
    node.policy.write_text("kind: typo\n")
    assert [rule.name for rule in node.load().candidates(None)] == ["company-ca", "gpu"]


@pytest.mark.parametrize("damage", ["", "{}\n", "[1]\n", '{"format":7,"sha256":"x","rules":1}\nnull\n', "\xff"])
def test_a_damaged_file_of_another_version_is_no_policy(node: Upgraded, damage: str) -> None:
    node.earlier.write_bytes(damage.encode("latin-1"))
    node.policy.write_text("kind: typo\n")
    assert "kind" in node.load().missing


def test_a_store_that_cannot_keep_the_text_keeps_no_older_one(node: Upgraded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older text would be taken for newer than the compiled form."""
    node.policy.write_text(document({"name": "older", "env": [{"name": "A", "value": "1"}]}))
    node.load()

    def full(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr("hook.compile.last_good.replace_file", full)
    node.policy.write_text(SAME.read_text())
    node.compile()
    assert not node.text.exists()
