"""The files of a node that its policy names: missing, somebody else's, of another kind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from hook.node.sources import ERROR, WARNING, look_at, problems_and_hints
from unit.support import document, policy, reassert


def mounting(path: object, **more: Any) -> dict[str, Any]:
    return {"name": "company-ca", "mounts": [{"hostPath": str(path), "mountPath": "/etc/ssl/ca.crt", **more}]}


def reading(path: object) -> dict[str, Any]:
    return {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"file": str(path)}}]}


def found(*rules: dict[str, Any], **spec: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.message) for finding in look_at(policy(*rules, **spec))]


def test_roots_files_and_directories_are_good(root_dir: Path) -> None:
    (root_dir / "value").write_text("void\n")
    (root_dir / "ca.crt").touch()
    assert found(mounting(root_dir / "ca.crt"), reading(root_dir / "value")) == []
    assert found(mounting(root_dir)) == []


def test_a_missing_host_path_refuses_containers(root_dir: Path) -> None:
    path = root_dir / "ca.crt"
    assert found(mounting(path)) == [
        (
            ERROR,
            f"rule company-ca: hostPath {path}: No such file or directory; every container that the rule matches is "
            "refused (onMissingSource: Fail). Create it on this node, or set onMissingSource: Skip",
        )
    ]
    path.symlink_to("nowhere")
    assert [severity for severity, _ in found(mounting(path))] == [ERROR]
    assert [severity for severity, _ in found(mounting(path, onMissingSource="Skip"))] == [WARNING]


@pytest.mark.users
def test_a_host_path_that_others_write_is_named(root_dir: Path) -> None:
    path = root_dir / "ca.crt"
    path.touch()
    path.chmod(0o666)
    [(severity, message)] = found(mounting(path))
    assert (severity, "is writable by others (mode 0666)" in message) == (WARNING, True)
    path.chmod(0o644)
    os.chown(root_dir, 1000, 0)
    [(severity, message)] = found(mounting(path))
    assert (severity, f"{root_dir} belongs to uid 1000" in message) == (WARNING, True)
    os.chown(root_dir, 0, 0)


def test_a_host_path_of_another_kind_is_named(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root_dir)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        [(severity, message)] = found(mounting(root_dir / "s"))
    assert severity == WARNING
    assert message.endswith("/s is a socket, neither a file nor a directory")


def test_a_value_is_read_as_a_start_reads_it(root_dir: Path) -> None:
    path = root_dir / "value"
    [(severity, message)] = found(reading(path))
    assert severity == ERROR
    assert message.endswith(
        f"{path}: No such file or directory; every container that the rule matches is refused (failurePolicy: Fail)"
    )
    [(severity, message)] = found(reading(path), failurePolicy="Ignore")
    assert message.endswith("starts without it (failurePolicy: Ignore)")
    path.mkdir()
    assert "is not a regular file" in found(reading(path))[0][1]
    path.rmdir()
    path.write_bytes(b"a\0b")
    assert "NUL" in found(reading(path))[0][1]
    path.write_text("good")
    path.chmod(0o622)
    assert "is writable by others" in found(reading(path))[0][1]


def test_audit_mode_refuses_nothing_yet(root_dir: Path) -> None:
    path = root_dir / "ca.crt"
    problems, hints = problems_and_hints(policy(mounting(path)))
    assert (len(problems), hints) == (1, [])
    problems, hints = problems_and_hints(policy(mounting(path), mode="Audit"))
    assert (problems, len(hints)) == ([], 1)
    assert hints[0].endswith("(not in Audit mode, which is in force)")


def test_policy_check_looks_at_the_node_if_it_is_told_to(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.write_text(document(mounting(root_dir / "ca.crt")))
    assert reassert("policy", "check", str(source)).returncode == 0
    result = reassert("policy", "check", "--node", str(source))
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"{source}:")
    assert f": error: rule company-ca: hostPath {root_dir}/ca.crt: No such file or directory" in line
    text = source.read_text().splitlines()[int(line.split(":")[1]) - 1]
    assert '"hostPath"' in text
    (root_dir / "ca.crt").touch()
    result = reassert("policy", "check", "--node", str(source))
    assert (result.returncode, result.stderr) == (0, "")
    assert "valid on this node, 1 rule," in result.stdout


@pytest.mark.parametrize(
    ("match", "engine", "said"),
    [
        ({"podSelector": {"matchLabels": {"a": "b"}}}, "containerd", None),
        ({"containerTypes": ["init"]}, "crio", "containerTypes, which is never known under crio without NRI: the c"),
        ({"containerTypes": ["init"]}, "docker", "containerTypes, which is never known under docker: the condition c"),
        ({"containerTypes": ["init", "container", "ephemeral"]}, "docker", None),
        (
            {"images": ["a/*"], "ifUnknown": "Skip"},
            "docker",
            "images, which is never known under docker: the condition",
        ),
        ({"namespaces": ["team-*"]}, "podman", "namespaces: it applies to no container of podman, which has no pods"),
    ],
)
def test_a_condition_that_an_engine_never_shows_is_said(match: dict[str, Any], engine: str, said: str | None) -> None:
    hints = problems_and_hints(policy({"name": "r", "match": match, "env": [{"name": "A", "value": "1"}]}), [engine])[1]
    assert len(hints) == (said is not None)
    assert all(f"rule r selects by {said}" in hint for hint in hints)


def test_an_exclusion_that_never_takes_effect_is_said() -> None:
    excluding = policy(exclude={"containerTypes": ["sandbox", "init"]})
    assert problems_and_hints(excluding, ["containerd"]) == ([], [])
    for engine, under in (("docker", "docker"), ("crio", "crio without NRI")):
        [hint] = problems_and_hints(excluding, [engine])[1]
        assert f"type init is never known under {under}: it excludes no container there" in hint
