"""Which mounts of a container may show files of the node, and what their paths alone reach."""

from __future__ import annotations

import pytest

from hook.core.container.identity import DOCKER, Identity
from hook.core.facts import Container
from hook.core.plan import Plan, nodes_own, plan
from hook.core.policy.store import KUBELET_ROOT
from unit.support import POD, bind, container, policy

ID = "0a" * 32
CRI = "/containerd/io.containerd.grpc.v1.cri"
UNDER_DOCKER = Identity(DOCKER, True, namespace="a", uid="1-2-3")
POD_DIRECTORY = f"{KUBELET_ROOT}/pods/1-2-3"


def decided(source: str, identity: Identity = POD, read_only: bool = False, **node_paths: str) -> Plan:
    """The plan for a container with one volume."""
    options = ["rbind", "ro"] if read_only else ["rbind"]
    start = container(mounts=[{**bind("/mnt", source), "options": options}]).start
    return plan(policy(nodePaths=node_paths), Container(identity, start))


@pytest.mark.parametrize(
    "source",
    [
        f"{POD_DIRECTORY}/etc-hosts",
        f"{POD_DIRECTORY}/containers/c/0a1b",
        f"{POD_DIRECTORY}/volumes/kubernetes.io~empty-dir/v",
        f"{POD_DIRECTORY}/volumes/kubernetes.io~csi/pvc-1/mount",
        f"/var/lib{CRI}/sandboxes/{ID}/resolv.conf",
        f"/run{CRI}/sandboxes/{ID}/shm",
        f"/var/lib{CRI}/containers/{ID}/volumes/{ID}",
        f"/var/lib/rancher/k3s/agent{CRI}/sandboxes/{ID}/hostname",
        f"/run/k3s{CRI}/sandboxes/{ID}/shm",
        f"/var/lib/docker/containers/{ID}/hostname",
        f"/run/containers/storage/overlay-containers/{ID}/userdata/hosts",
    ],
)
def test_what_kubelet_and_engines_make_for_a_container_is_not_looked_at(source: str) -> None:
    assert not nodes_own([bind("/x", source)], KUBELET_ROOT)
    assert nodes_own([bind("/x", f"{source}/link")], KUBELET_ROOT), "a container may have made it"
    assert nodes_own([bind("/x", f"{source}/../../x")], KUBELET_ROOT)


@pytest.mark.parametrize(
    "source",
    [
        "/data",
        f"{POD_DIRECTORY}/volume-subpaths/v/c/0",
        f"{POD_DIRECTORY}/volumes/kubernetes.io~local-volume/v",
        f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/rootfs/link",
        f"/var/lib/containers/storage/overlay/{ID}/diff/link",
        "relative",
    ],
)
def test_all_else_is(source: str) -> None:
    assert nodes_own([bind("/x", source)], KUBELET_ROOT)


def test_mounts_of_the_kernels_own_file_systems_are_not() -> None:
    mounts: list[dict[str, object]] = [
        {"destination": "/x", "type": kind, "source": kind} for kind in ("proc", "tmpfs")
    ]
    assert not nodes_own(mounts, KUBELET_ROOT)
    assert nodes_own([{"destination": "/x", "type": "overlay", "source": "overlay"}], KUBELET_ROOT)


def test_a_reserved_mount_needs_no_look_and_a_volume_beside_it_does() -> None:
    reserved = {"hostPath": "/srv/ca", "mountPath": "/etc/ssl", "readOnly": True}
    rules = policy({"name": "ca", "mounts": [reserved]})
    start = container().start
    plan(rules, Container(POD, start)).apply(start)
    assert not plan(rules, Container(POD, start)).node_paths_of_reassert
    start.mounts = [*start.mounts, bind("/etc/sslx", "/data")]
    assert plan(rules, Container(POD, start)).node_paths_of_reassert


def test_env_of_the_same_name_hides_no_volume() -> None:
    """An env name may have any printable character but `=` (Kubernetes 1.30, RelaxedEnvironmentVariableValidation)."""
    rules = policy({"name": "proxy", "env": [{"name": "*_PROXY", "absent": True}]})
    target = container(env=["/mnt_PROXY=x"], mounts=[bind("/mnt_PROXY", "/etc/reassert")])
    decided = plan(rules, target)
    assert "nodePaths.reassert is Refuse" in decided.refusal()
    assert decided.node_paths_of_reassert, "the hook looks too"


@pytest.mark.parametrize("source", ["/", "/etc", "/etc/reassert/trust.d", "/usr/local/sbin/reassert-runc", "/var/log"])
def test_own_paths_are_refused_unless_read_only(source: str) -> None:
    assert "nodePaths.reassert is Refuse" in decided(source).refusal()
    assert decided(source, read_only=True).refusal() == ""
    assert decided(source, reassert="Report").node_paths


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
    refusal = plan(policy(), container(mounts=[overlay])).refusal()
    assert refusal.endswith("of reassert, and nodePaths.reassert is Refuse") if is_written else refusal == ""


@pytest.mark.parametrize("source", ["/run/containerd/containerd.sock", "/var/run/docker.sock", "/etc/crio/crio.conf.d"])
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
    denials = [str(reason) for reason in plan(policy(), Container(POD, start)).denials]
    refusal = f"the volume /mnt has {nested} in it, which a runtime makes there, and reaches {made} of reassert"
    assert denials == ([f"{refusal}, and nodePaths.reassert is Refuse"] if made else [])
    with_device = container(mounts=start.mounts[:1]).start
    with_device.devices = [{"path": nested, "type": "p"}]
    assert [str(reason) for reason in plan(policy(), Container(POD, with_device)).denials] == denials
    start.mounts.append(bind(f"{nested}/x", "/data"))
    assert len(plan(policy(), Container(POD, start)).denials) == bool(made), "that one is made in the nested volume"
