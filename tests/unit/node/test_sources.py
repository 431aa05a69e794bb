"""The files of a node that its policy names: missing, somebody else's, of another kind."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.base.finding import ERROR, NOTE, WARNING
from hook.core.policy.model import Policy
from hook.node.sources import leads_out, look_at, of_policy, taken_away
from unit.ownmachine import Machine
from unit.support import document, policy, reassert

pytestmark = marks.promise("`status` reports every problem, also of files that the policy names")


def mounting(path: object, **more: Any) -> dict[str, Any]:
    return {"name": "company-ca", "mounts": [{"hostPath": str(path), "mountPath": "/etc/ssl/ca.crt", **more}]}


def reading(path: object) -> dict[str, Any]:
    return {"name": "gpu", "env": [{"name": "GPU", "valueFrom": {"file": str(path)}}]}


def found(*rules: dict[str, Any], **spec: Any) -> list[tuple[str, str]]:
    return [(finding.severity, str(finding)) for _, finding in look_at(policy(*rules, **spec))]


def notes(of: Policy, engines: Sequence[str] = ()) -> list[str]:
    """What `status` notes about a policy."""
    return [str(finding) for finding in of_policy(of, engines) if finding.severity == NOTE]


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
    assert [severity for severity, _ in found(mounting(path, onMissingSource="Skip"))] == [NOTE]


def test_a_mount_that_has_no_place_in_a_read_only_directory_is_named(root_dir: Path) -> None:
    below = {"mountPath": "/etc/ssl", "allowBelow": ["/etc/ssl/private"]}
    refuses = (
        "no place in the reserved mount /etc/ssl, which is read-only: make private, an empty file or directory, in "
    )
    [(severity, message)] = found(mounting(root_dir, **below))
    assert severity == WARNING
    assert f"a container with a mount there is refused: mount /etc/ssl/private has {refuses}" in message
    assert found(mounting(root_dir, **below, readOnly=False)) == []
    nested = {"hostPath": str(root_dir), "mountPath": "/etc/ssl/private"}
    rule = mounting(root_dir, mountPath="/etc/ssl")
    [(severity, message)] = found({**rule, "mounts": [*rule["mounts"], nested]})
    assert (severity, "every container that the rule matches is refused: mount /etc/ssl/private" in message) == (
        ERROR,
        True,
    )
    (root_dir / "private").mkdir()
    assert found(mounting(root_dir, **below)) == []


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
    assert [finding.severity for finding in of_policy(policy(mounting(path)))] == [ERROR]
    [finding] = of_policy(policy(mounting(path), mode="Audit"))
    assert finding.severity == NOTE
    tried = "would be refused (onMissingSource: Fail); in Audit mode it starts and is reported"
    assert tried in finding.text
    assert found(mounting(path), mode="Audit") == [(ERROR, str(finding))]
    enforced = {"name": "other", "env": [{"name": "A", "value": "a"}]}
    [(severity, message)] = found({**mounting(path), "mode": "Audit"}, enforced)
    assert (severity, tried in message) == (WARNING, True)
    [(_, message)] = found(reading(path), mode="Audit")
    assert "every container that the rule matches would be refused (failurePolicy: Fail); in Audit mode it" in message
    [(_, message)] = found(mounting(root_dir, mountPath="/etc/ssl", allowBelow=["/etc/ssl/private"]), mode="Audit")
    assert "a container with a mount there would be refused: mount /etc/ssl/private has no place" in message


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
        (
            {"images": ["a/*"], "ifUnknown": "Skip"},
            "docker",
            "images, which is never known under docker: the condition",
        ),
        ({"namespaces": ["team-*"]}, "podman", "namespaces: it applies to no container of podman, which has no pods"),
    ],
)
def test_a_condition_that_an_engine_never_shows_is_said(match: dict[str, Any], engine: str, said: str | None) -> None:
    hints = notes(policy({"name": "r", "match": match, "env": [{"name": "A", "value": "1"}]}), [engine])
    assert len(hints) == (said is not None)
    assert all(f"rule r selects by {said}" in hint for hint in hints)


def test_links_that_lead_out_of_a_mounted_directory_are_said(root_dir: Path) -> None:
    """As /etc/ssl/certs of Debian, whose names lead to /usr/share/ca-certificates."""
    own, roots = root_dir / "certs", root_dir / "roots"
    own.mkdir()
    roots.mkdir()
    (own / "bundle.pem").write_text("a certificate\n")
    (own / "same.pem").symlink_to("bundle.pem")
    (own / "below.pem").symlink_to("/etc/ssl/certs/bundle.pem")
    mounted = policy({"name": "ca", "mounts": [{"hostPath": str(own), "mountPath": "/etc/ssl/certs"}]})
    assert list(leads_out(mounted)) == []
    (own / "0.0").symlink_to(roots / "one.crt")
    (own / "1.0").symlink_to("../roots/one.crt")
    [(place, one)] = leads_out(mounted)
    assert (one.severity, place) == ("warning", ("spec", "rules", 0, "mounts", 0, "hostPath"))
    assert f"2 links in hostPath {own} lead out of it" in one.text


RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}
INDISTINCT = "kubelet does not tell init containers from ephemeral ones"


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (["init"], f"containerTypes init: {INDISTINCT}; it counts as met for both"),
        (["container", "ephemeral"], f"containerTypes ephemeral: {INDISTINCT}; it counts as met for both"),
        (["sandbox", "init", "ephemeral"], None),
        (["container"], None),
        (["init", "container", "ephemeral"], None),
    ],
)
def test_a_type_that_kubelet_does_not_tell_is_said(root_dir: Path, types: list[str], said: str | None) -> None:
    root_dir.joinpath("pod-resources").mkdir()
    root_dir.joinpath("pod-resources/kubelet.sock").touch()

    def hints(**spec: Any) -> list[str]:
        return notes(policy(kubelet={"root": str(root_dir)}, **spec), ["containerd"])

    for skip in (False, True):
        match = {"containerTypes": types, **({"ifUnknown": "Skip"} if skip else {})}
        found = notes(
            policy(
                {"name": "r", "match": match, "env": [{"name": "A", "value": "1"}]}, kubelet={"root": str(root_dir)}
            ),
            ["containerd"],
        )
        wanted = said.replace("it counts as met for both", "for these the condition is not met") if said else ""
        assert found == ([f"rule r selects by {wanted if skip else said}. Name both types"] if said else [])
    excluded = hints(exclude={"containerTypes": types})
    kind = "ephemeral" if "ephemeral" in types else "init"
    assert excluded == (
        [f"exclude: the type {kind} excludes no container: {INDISTINCT}. Name both types"] if said else []
    )


def test_a_kubelet_that_cannot_be_asked_is_said(root_dir: Path) -> None:
    types = {"containerTypes": ["container"]}
    rule = {"name": "r", "match": types, "env": [{"name": "A", "value": "1"}]}
    for_all = {**rule, "match": {"containerTypes": ["init", "container", "ephemeral"]}}
    node = {"kubelet": {"root": str(root_dir)}}
    why = f"the type is unknown: kubelet's socket {root_dir}/pod-resources/kubelet.sock: No such file or directory"
    assert notes(policy(rule, **node)) == [f"rule r selects by containerTypes, and {why}: it counts as met"]
    assert notes(policy(exclude=types, **node)) == [
        f"exclude: {why}: no container is excluded by its type but sandboxes"
    ]
    assert notes(policy(for_all, exclude={"containerTypes": ["sandbox"]}, **node)) == []
    root_dir.joinpath("pod-resources").mkdir()
    root_dir.joinpath("pod-resources/kubelet.sock").touch(0o666)
    root_dir.joinpath("pod-resources/kubelet.sock").chmod(0o666)
    [said] = notes(policy(rule, **node))
    assert "kubelet.sock is writable by others" in said


def test_a_checkpoint_that_rules_need_and_kubelet_lacks_is_said(root_dir: Path, machine: Machine) -> None:
    gpu = {"name": "gpu", "env": [{"name": "A", "valueFrom": {"deviceAllocation": {}}}]}
    plugins = "/var/lib/kubelet/device-plugins"

    def hints(*rules: dict[str, Any]) -> list[str]:
        return notes(policy(*rules, kubelet={"root": str(root_dir)}))

    assert hints(gpu) == [], "no kubelet"
    machine.file(f"{plugins}/kubelet.sock")
    path = f"{plugins}/kubelet_internal_checkpoint"
    said = f"rule gpu needs kubelet's device checkpoint, kubelet runs, and {path} is missing"
    assert hints(gpu) == [f"{said}: nothing is allocated on this node, as long as no device plugin registers"]
    assert hints(RULE) == []
    machine.file(f"{plugins}/x.sock")
    assert hints(gpu) == [
        f"{said}: x.sock is a device plugin's, so what is allocated is not known: failurePolicy decides"
    ]
    machine.file(f"{plugins}/kubelet_internal_checkpoint")
    assert hints(gpu) == []


@pytest.mark.parametrize(
    ("patterns", "allowed", "said"),
    [
        (["module.wasm.image/*"], [], ["module.wasm.image/*"]),
        (["module.wasm.image/*"], ["module.wasm.image/*"], []),
        (["module.wasm.image/variant"], ["module.wasm.*"], []),
        (["dev.gvisor.*", "run.oci.handler"], ["run.oci.handler"], ["dev.gvisor.*"]),
        (["*"], [], ["*"]),
        (["io.kubernetes.container.*", "com.example.*", "run.oci.keep_original_groups"], [], []),
    ],
)
def test_annotations_that_the_engine_lets_through_and_the_policy_removes_are_said(
    patterns: list[str], allowed: list[str], said: list[str]
) -> None:
    made = policy(RULE, allowedAnnotations=allowed)
    assert [finding.text for _, finding in taken_away(made, {"crun": patterns, "runc": []})] == [
        f"the annotation {pattern}, which the engine lets through for handler crun, can steer a runtime: it is removed "
        "where a rule applies. If pods need it, name it in spec.allowedAnnotations"
        for pattern in said
    ]


def test_handlers_with_the_same_annotation_are_said_at_once() -> None:
    found = taken_away(policy(RULE), {"b": ["krun.*"], "a": ["krun.*"]})
    assert ["for handler a, b" in finding.text for _, finding in found] == [True]
    assert not list(taken_away(policy(), {"a": ["krun.*"]})), "no rule"


def test_the_place_of_each_finding_is_in_the_policy_file(root_dir: Path) -> None:
    """Also of what stands in `exclude`, and in the `match` of a rule."""
    source = root_dir / "policy.yaml"
    source.write_text(
        "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  exclude:\n    containerTypes: [init]\n  rules:\n"
        "  - name: r\n    env: [{name: A, value: b}]\n    match:\n      containerTypes: [ephemeral]\n"
    )
    result = reassert("policy", "check", "--node", str(source))
    assert result.returncode == 0, result.stderr
    lines = [line.removeprefix(f"{source}:").partition(":")[0] for line in result.stderr.splitlines()]
    assert {"5", "10"} <= {*lines}, result.stderr
