"""Which mounts of a container may show files of the node, and what their paths alone reach."""

from __future__ import annotations

import pytest

from hook.core.container import oci
from hook.core.container.identity import DOCKER, Identity
from hook.core.facts import Container
from hook.core.plan import Plan, plan
from hook.core.policy.store import KUBELET_ROOT
from hook.core.reserve.node_paths import ADMINISTRATOR, ENGINE_PATHS, reaches, stays_below
from unit.support import POD, bind, container, policy

ID = "0a" * 32
CRI = "/containerd/io.containerd.grpc.v1.cri"
UNDER_DOCKER = Identity(DOCKER, True, namespace="a", uid="1-2-3")
POD_DIRECTORY = f"{KUBELET_ROOT}/pods/1-2-3"


AUDITED = {"name": "tried", "mode": "Audit", "env": [{"name": "TRIED", "absent": True}]}
ENFORCED = {"name": "enforced", "mode": "Enforce", "env": [{"name": "A", "absent": True}]}


def decided(source: str, identity: Identity = POD, read_only: bool = False, **node_paths: str) -> Plan:
    """The plan for a container with one volume."""
    options = ["rbind", "ro"] if read_only else ["rbind"]
    start = container(mounts=[{**bind("/mnt", source), "options": options}]).start
    return plan(policy(ENFORCED, nodePaths=node_paths), Container(identity, start))


@pytest.mark.parametrize(
    "source",
    [
        f"{POD_DIRECTORY}/etc-hosts",
        f"{POD_DIRECTORY}/volumes/kubernetes.io~empty-dir/v",
        f"/var/lib{CRI}/sandboxes/{ID}/resolv.conf",
        f"/var/lib/docker/containers/{ID}/hostname",
        "/data",
        "relative",
    ],
)
def test_the_hook_looks_whatever_the_text_of_a_path_is(source: str) -> None:
    """A container that has a writable volume above it can have made a link there."""
    assert decided(source).node_paths_of_reassert
    assert decided(source).refusal() == ""


def test_mounts_of_the_kernels_own_file_systems_show_no_file_of_the_node() -> None:
    mounts: list[dict[str, object]] = [
        {"destination": "/x", "type": kind, "source": kind} for kind in ("proc", "tmpfs")
    ]
    overlay: dict[str, object] = {"destination": "/x", "type": "overlay", "source": "overlay"}
    assert not plan(policy(ENFORCED), container(mounts=mounts)).node_paths_of_reassert
    assert plan(policy(ENFORCED), container(mounts=[*mounts, overlay])).node_paths_of_reassert


def test_where_a_mount_is_reserved_the_hook_looks_at_the_others_too() -> None:
    reserved = {"hostPath": "/srv/ca", "mountPath": "/etc/ssl", "readOnly": True}
    assert plan(policy({"name": "ca", "mounts": [reserved]}), container()).node_paths_of_reassert
    assert not plan(policy({"name": "ca", "env": [{"name": "CA", "value": "x"}]}), container()).node_paths_of_reassert


def test_a_volume_at_the_path_of_a_reserved_mount_is_judged_where_an_adapter_cannot_remove_it() -> None:
    reserved = {"hostPath": "/srv/ca", "mountPath": "/etc/ssl", "readOnly": True, "volumesAbove": "Allow"}
    rules = policy({"name": "ca", "mounts": [reserved]})
    target = container(mounts=[bind("/etc/ssl", "/etc/reassert")])
    decision = plan(rules, target)
    assert decision.refusal() == "", "the wrapper removes it"
    [reason] = stays_below(decision, target.start.mounts)
    assert "the volume /etc/ssl can be written and reaches /etc/reassert" in str(reason)
    decision.apply(target.start)
    assert stays_below(decision, target.start.mounts) == []


def test_env_of_the_same_name_hides_no_volume() -> None:
    """An env name may have any printable character but `=` (Kubernetes 1.30, RelaxedEnvironmentVariableValidation)."""
    rules = policy({"name": "proxy", "env": [{"name": "*_PROXY", "absent": True}]})
    target = container(env=["/mnt_PROXY=x"], mounts=[bind("/mnt_PROXY", "/etc/reassert")])
    decided = plan(rules, target)
    assert "nodePaths.reassert is Refuse" in decided.refusal()
    assert decided.node_paths_of_reassert, "the hook looks too"


@pytest.mark.parametrize(
    "state", ["/run/containerd", "/run/k3s/containerd", "/run/k0s/containerd"], ids=["containerd", "k3s", "k0s"]
)
def test_a_pods_own_mounts_from_an_engines_state_are_not_the_engines(state: str) -> None:
    shm = f"{state}/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm"
    assert not any(reaches(shm, path) for path in ENGINE_PATHS)
    assert decided(shm).node_paths == []


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "/etc",
        "/etc/reassert/trust.d",
        "/usr/local/sbin/reassert-runc",
        "/var",
        "/var/lib/reassert-kubernetes/program",
        "/usr/local/bin",
        "/opt/.reassert.reassert-aside",
        "/usr/lib/systemd/system/reassert-agent.service",
    ],
)
def test_own_paths_are_refused_unless_read_only(source: str) -> None:
    assert "nodePaths.reassert is Refuse" in decided(source).refusal()
    assert decided(source, read_only=True).refusal() == ""
    assert decided(source, reassert="Report").node_paths


def test_the_log_alone_refuses_nothing_where_the_hook_can_cover_it() -> None:
    """fluent-bit's /var/log. A volume of the log itself, and a user namespace, leave nothing to cover."""
    assert (decided("/var/log").refusal(), decided("/var/log").node_logs) == ("", ["/mnt"])
    assert not decided("/var/log", reassert="Report").node_logs
    assert "set readOnly: true" in decided("/var/log/reassert").refusal()
    assert "nodePaths.reassert is Refuse" in decided("/var/log", UNDER_DOCKER).refusal(), "it has what proves a pod"
    start = container(mounts=[bind("/mnt", "/var/log")]).start
    start.has_users = True
    assert "with hostUsers: false" in plan(policy(ENFORCED), Container(POD, start)).refusal()


def test_each_refusal_names_the_volume_of_the_pod_and_what_owner_and_administrator_can_do() -> None:
    assert decided("/etc").refusal() == (
        "the volume /mnt can be written and reaches /etc/reassert of reassert, and nodePaths.reassert is Refuse: set "
        "readOnly: true, or mount less of the node; or the node's administrator excepts the namespace "
        "(nodePaths.except)"
    )


def test_a_namespace_is_excepted_of_nodepaths_alone() -> None:
    rules = policy(
        {"name": "ca", "env": [{"name": "CA", "value": "x"}]}, nodePaths={"except": {"namespaces": ["monit*"]}}
    )
    start = container(mounts=[bind("/mnt", "/etc")]).start
    excepted = plan(rules, Container(Identity("containerd", True, namespace="monitoring"), start))
    assert (excepted.refusal(), [edit.name for edit in excepted.edits]) == ("", ["CA"])
    assert not excepted.node_paths_of_reassert, "no hook looks"
    for other in (POD, Identity("", None, namespace="monitoring"), Identity("", False)):
        assert "nodePaths.reassert is Refuse" in plan(rules, Container(other, start)).refusal()


@pytest.mark.parametrize(
    ("mode", "rules", "given", "becomes", "closes"),
    [
        ("Enforce", [ENFORCED], {}, "refused", True),
        ("Enforce", [ENFORCED, AUDITED], {}, "tried", True),
        ("Enforce", [ENFORCED, AUDITED], {"reassert": "Refuse"}, "refused", True),
        ("Enforce", [AUDITED], {"reassert": "Refuse"}, "would be refused", False),
        ("Enforce", [], {}, "tried", True),
        ("Enforce", [], {"reassert": "Refuse"}, "tried", True),
        ("Audit", [], {"reassert": "Refuse"}, "would be refused", False),
        ("Audit", [ENFORCED], {"reassert": "Refuse"}, "tried", False),
        ("Audit", [{**ENFORCED, "mode": "Audit"}], {}, "would be refused", False),
        ("Enforce", [ENFORCED], {"reassert": "Report"}, "reported", True),
    ],
)
def test_nodepaths_follows_the_stages_of_the_rules(
    mode: str, rules: list[dict[str, object]], given: dict[str, str], becomes: str, closes: bool
) -> None:
    made = policy(*rules, mode=mode, nodePaths=given)
    found = plan(made, container(mounts=[bind("/mnt", "/etc")]))
    seen = [bool(found.refusal()), bool(found.audited), bool(found.denials), bool(found.node_paths)]
    names = {"refused": [1, 0, 1, 0], "tried": [0, 1, 0, 0], "would be refused": [0, 0, 1, 0], "reported": [0, 0, 0, 1]}
    assert (seen, made.closes) == (names[becomes], closes)
    made.enforce_all()
    assert bool(plan(made, container(mounts=[bind("/mnt", "/etc")])).refusal()) == (becomes != "reported")


@pytest.mark.parametrize("mode", ["rw", "ro"])
@pytest.mark.parametrize(
    ("option", "is_written"),
    [
        ("upperdir=/etc/reassert", True),
        ("workdir=/var/run/reassert/a=b", True),
        ("upperdir=/srv/etc/reassert", False),
        ("lowerdir=/etc/reassert", False),
    ],
)
def test_what_an_overlay_writes_to_is_its_source(option: str, is_written: bool, mode: str) -> None:
    overlay = {"destination": "/mnt", "type": "overlay", "source": "overlay", "options": [mode, option]}
    refusal = plan(policy(ENFORCED), container(mounts=[overlay])).refusal()
    assert "of reassert, and nodePaths.reassert is Refuse: " in refusal if is_written else refusal == ""


@pytest.mark.parametrize(
    "source",
    [
        "/run/containerd/containerd.sock",
        "/var/run/docker.sock",
        "/etc/crio/crio.conf.d",
        "/run/containerd/s",
        f"/run/containerd/s/{ID}",
        "/run/docker/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock.ttrpc",
        "/run/dockershim.sock",
        "/run/k0s/containerd.sock",
    ],
)
def test_an_engines_are_reported_or_refused_also_read_only(source: str) -> None:
    assert decided(source, read_only=True).node_paths
    assert "nodePaths.engine is Refuse" in decided(source, read_only=True, engine="Refuse").refusal()


@pytest.mark.parametrize("source", ["/var/log/pods", "/var/lib/dockershim/sandbox", "/var/lib/docker", KUBELET_ROOT])
def test_what_proves_a_pod_under_docker_is_reasserts_own_there(source: str) -> None:
    """Who can rename the directory of a pod's logs names its namespace (hook.core.container.dockershim)."""
    assert "nodePaths.reassert is Refuse" in decided(source, UNDER_DOCKER).refusal()
    assert decided(source).refusal() == ""


@pytest.mark.parametrize(
    "source", ["/var/log/pods/a_b_1-2-3", f"/var/lib/docker/volumes/{ID}/_data", "/usr/local/sbinx"]
)
def test_what_lies_beside_them_starts(source: str) -> None:
    assert decided(source, UNDER_DOCKER).refusal() == ""


@pytest.mark.parametrize(
    ("volume", "nested", "made"),
    [
        ("/etc/reassert", "/mnt/hold", "/etc/reassert"),
        ("/", "/mnt/run/reassert/probes/x", "/run/reassert"),
        ("/var/run", "/mnt/reassert/probes/x", "/run/reassert"),
        ("/", "/mnt/run", ""),
        ("/srv/reassert", "/mnt/hold", ""),
    ],
)
def test_a_mount_in_a_read_only_volume_of_reasserts_own_files_is_refused(volume: str, nested: str, made: str) -> None:
    start = container(mounts=[{**bind("/mnt", volume), "options": ["rbind", "ro"]}, bind(nested, "/data")]).start
    denials = [str(reason) for reason in plan(policy(ENFORCED), Container(POD, start)).denials]
    refusal = f"the volume /mnt has {nested} in it, which a runtime makes there, and reaches {made} of reassert"
    cure = f"mount {nested} elsewhere; {ADMINISTRATOR}"
    assert denials == ([f"{refusal}, and nodePaths.reassert is Refuse: {cure}"] if made else [])
    with_device = container(mounts=oci.objects(start.mounts[:1])).start
    with_device.devices = [oci.Device({"path": nested, "type": "p"})]
    assert [str(reason) for reason in plan(policy(ENFORCED), Container(POD, with_device)).denials] == denials
    start.mounts.append(oci.Mount(bind(f"{nested}/x", "/data")))
    assert len(plan(policy(ENFORCED), Container(POD, start)).denials) == bool(made), (
        "that one is made in the nested volume"
    )
