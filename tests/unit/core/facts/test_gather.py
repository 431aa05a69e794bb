"""The node's files are read for a decision only if no user but root can write to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import ReassertError, Unacceptable, Undecided
from hook.core.base.mountinfo import mount_table_at
from hook.core.base.system import Untrusted
from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.core.decide import Adapter
from hook.core.facts import Container, network_filesystems
from hook.core.facts.files import VALUE_LIMIT, first_line
from hook.core.facts.gather import gather
from hook.core.plan import plan
from hook.core.policy.model import Match
from unit.shortage import free_descriptors
from unit.support import POD, policy, rule

pytestmark = marks.promise("Values come from files that only root can write", about="Decision")


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"eu-1\nx", "eu-1"), (b"eu-1", "eu-1"), (b"eu-1\r\n", "eu-1"), (b"", ""), (b"\nx", ""), ("é\n".encode(), "é")],
)
def test_first_line_without_its_end(root_dir: Path, content: bytes, line: str) -> None:
    (root_dir / "f").write_bytes(content)
    assert first_line(str(root_dir / "f")) == line


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda file: file.write_bytes(b"a\0b"), Undecided, "the first line contains a NUL byte"),
        (lambda file: file.write_bytes(b"\xff"), Undecided, "not UTF-8 at byte 0"),
        (lambda file: file.write_bytes(b"x" * (VALUE_LIMIT + 1)), Undecided, "larger than the limit"),
        (Path.mkdir, Undecided, "is not a regular file"),
        (os.mkfifo, Undecided, "is not a regular file"),
        pytest.param(
            lambda file: file.symlink_to("/dev/zero"), Untrusted, "writable by others", marks=pytest.mark.users
        ),
        (lambda file: (file.touch(), file.chmod(0o666)), Untrusted, "writable by others"),
        pytest.param(
            lambda file: (file.touch(), os.chown(file, 1000, 0)),
            Untrusted,
            "belongs to uid 1000",
            marks=pytest.mark.users,
        ),
    ],
    ids=["nul", "latin", "huge", "directory", "fifo", "device", "mode", "owner"],
)
def test_file_that_is_no_value_is_never_guessed_at(
    root_dir: Path, make: Callable[[Path], object], error: type[ReassertError], complaint: str
) -> None:
    make(root_dir / "f")
    with pytest.raises(error, match=complaint):
        first_line(str(root_dir / "f"))


def test_only_rules_that_apply_are_gathered_for(root_dir: Path) -> None:
    good, gone = root_dir / "good", root_dir / "gone"
    good.write_text("1")

    def held(name: str, file: Path, **match: list[str]) -> Match:
        env = [{"name": "A", "valueFrom": {"file": str(file)}}]
        one = rule(name, match=match, env=env, mounts=[{"hostPath": str(file), "mountPath": "/m"}])
        return Match(one, POD)

    facts = gather(
        Adapter(),
        policy(),
        POD,
        [held("a", good), held("b", gone), held("c", root_dir / "other", namespaces=["other"])],
    )
    assert facts.files == {str(good): "1"}
    assert facts.unreadable == {str(gone): f"{gone}: No such file or directory"}
    assert facts.absent_sources == {str(gone)}


GPU = {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"deviceAllocation": {"default": "void"}}}]}


def test_identity_that_its_own_annotations_make_unknown_is_no_failure_of_the_node() -> None:
    """`failurePolicy: Ignore` would let the container keep what it set."""
    one = rule(**GPU)
    identity = Identity("ambiguous", None)
    with pytest.raises(Unacceptable, match="annotations claim a pod"):
        gather(Adapter(), policy(GPU), identity, [Match(one, identity)])


def test_a_shortage_is_no_file_that_cannot_be_read(root_dir: Path) -> None:
    """It is raised, for no `failurePolicy` lets it through: other containers can cause it."""

    (root_dir / "f").write_text("1")
    for fields in (GPU, {"name": "r", "env": [{"name": "A", "valueFrom": {"file": f"{root_dir}/f"}}]}):
        one = rule(**fields)
        with free_descriptors(0), pytest.raises(OSError, match="Too many open files"):
            gather(Adapter(), policy(), POD, [Match(one, POD)])


@marks.hole(
    "A hostPath on a broken disk counted as missing: `onMissingSource: Skip` left the mount out",
    since="0.1.0",
    fixed="0.3.0",
    severity="low",
)
@pytest.mark.parametrize(("on_missing", "reported"), [("Skip", "errors"), ("Fail", "denials")])
def test_a_host_path_that_cannot_be_looked_at_is_not_left_out(root_dir: Path, on_missing: str, reported: str) -> None:
    """Only one that is certainly missing is; and no other rule loses anything by it."""
    loop = root_dir / "loop"
    loop.symlink_to(loop)
    entry = {"hostPath": str(loop), "mountPath": "/m", "onMissingSource": on_missing}
    rules = policy({"name": "ca", "mounts": [entry]}, {"name": "gpu", "env": [{"name": "A", "value": "1"}]})
    matches = [Match(one, POD) for one in rules.candidates(None)]
    decided = plan(rules, Container(POD, Start([], []), gather(Adapter(), rules, POD, matches)), matches)
    [reason] = getattr(decided, reported)
    assert str(reason).startswith(f"rule ca: hostPath {loop} for mount /m cannot be looked at: {loop}: Too many levels")
    assert len(decided.denials + decided.errors) == 1
    assert [edit.name for edit in decided.edits] == ["A"]


def test_pause_of_docker_and_what_its_user_puts_beside_it_has_no_allocation() -> None:
    one = rule(**GPU)
    identity = Identity("docker", None, uid="1-2-3")
    facts = gather(Adapter(), policy(GPU), identity, [Match(one, identity)])
    assert (facts.allocations, facts.allocation_problem) == ([], "")


@marks.hole("A subPath with a carriage return blinded all rules in Audit mode")
def test_nothing_of_a_tried_rule_is_touched_on_a_file_system_that_may_hang(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's list of mounts says where one is. Links lead there, and back to a local one.

    A patch: a unit test mounts no NFS.
    """
    (root_dir / "out").symlink_to("mnt/nfs odd")
    (root_dir / "mnt").mkdir()
    (root_dir / "back").symlink_to("out/../../here")  # it passes the directory that may hang
    (root_dir / "here/x").mkdir(parents=True)
    (root_dir / "up").symlink_to("here/x/../../out")
    (root_dir / "top").symlink_to(f"/../var/..{root_dir}/here/../out")
    (root_dir / "loop").symlink_to("loop")
    table = (
        f"1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {root_dir}/mnt/nfs\\040odd rw shared:1 master:2 - nfs4 a:/b rw\n"
    )
    table += f"3 2 0:3 / {root_dir}/mnt/nfs\\040odd/local rw - tmpfs t rw\n"
    table += (
        f"4 1 0:4 /a\rb {root_dir}/volume rw - ext4 /dev/x rw\n"  # the kernel does not escape what a subPath may hold
    )
    (root_dir / "mountinfo").write_bytes(table.encode())
    with (root_dir / "mountinfo").open("rb", buffering=0) as file:
        rows = mount_table_at(file.fileno())
    monkeypatch.setattr(network_filesystems, "mount_table", lambda _: rows)
    touched = [f"{root_dir}/{name}" for name in ("here", "loop", "none")]
    left = [
        f"{root_dir}/{name}" for name in ("out", "mnt/nfs odd", "out/x", "mnt/nfs odd/local/x", "back", "up", "top")
    ]
    for fields, policy_mode in (({"mode": "Audit"}, "Enforce"), ({}, "Audit")):
        env = [{"name": "A", "valueFrom": {"file": left[0]}}]
        mounts = [{"hostPath": path, "mountPath": f"/m{number}"} for number, path in enumerate(touched + left)]
        one = rule(env=env, mounts=mounts, **fields)
        one.is_audited = "mode" in fields
        match = Match(one, POD)
        match.applies = True
        node = policy(mode=policy_mode) if policy_mode == "Audit" else policy()
        facts = gather(Adapter(), node, POD, [match])
        assert facts.directories == {touched[0]}
        assert facts.absent_sources == {touched[1], touched[2]}
        assert facts.unreadable[left[0]] == f"{left[0]} is on nfs4, which may hang: not read in Audit mode"
        assert facts.files == {}
    one.is_audited = True
    enforced = Match(rule("e", mounts=[{"hostPath": left[1], "mountPath": "/e"}]), POD)
    facts = gather(Adapter(), policy(), POD, [match, enforced])
    assert facts.absent_sources & {*left} == {left[1]}, "a path of an enforced rule is looked at"
    one.is_audited = False
    assert set(left) <= gather(Adapter(), policy(), POD, [match]).absent_sources, "an enforced rule looks"
