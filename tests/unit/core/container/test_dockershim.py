"""Containers of docker under kubelet: the files that prove a pod's container, and what holds without each of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.dockershim import prove
from hook.core.container.identity import APP_TYPES, TYPES, Identity, identify
from hook.core.container.spec import Spec
from unit.support import FIXTURES

RECORDED = FIXTURES / "kubelet" / "k1.20-dockershim"
ID = "528f0f9cff6b73ecb3f567456a5e8850801e837e636047ba9d7c5f211988627d"
UID = "79a3cc685b68dbeb0caaea052c524305"
POD = f"default_victim-labnode_{UID}"
NAMES = {"namespace": "default", "pod": "victim-labnode", "uid": UID, "container": "evil"}


class Docker:
    """A node below a directory: the recorded config.json, and the files that kubelet, dockershim and dockerd made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        text = (RECORDED / "config.victim.evil.json").read_text()
        self.spec: dict[str, Any] = json.loads(text.replace("/var/lib/", f"{root}/"))
        self.record = root / "docker" / "containers" / ID / "hostconfig.json"
        self.record.parent.mkdir(parents=True)
        self.record.write_text((RECORDED / "hostconfig.victim.evil.json").read_text())
        self.logs = root / "pods"
        (self.logs / POD / "evil").mkdir(parents=True)
        (self.logs / "kube-system_other_1-2-3").mkdir()
        self.asks = False
        self.sandbox = root / "dockershim" / "sandbox" / ID
        self.sandbox.parent.mkdir(parents=True)

    def becomes_sandbox(self) -> None:
        """Of the same pod: pause has no mounts of kubelet."""
        self.sandbox.touch()
        self.spec["mounts"] = [mount for mount in self.spec["mounts"] if "/kubelet/" not in mount["source"]]

    def named(self, cgroup: str | None = None, **names: Any) -> Identity:
        """Who the container is."""
        if cgroup:
            self.spec["linux"]["cgroupsPath"] = cgroup
        where = f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{ID}/config.json"
        identity = identify(Spec(json.dumps(self.spec).encode(), where))
        directories = (f"{self.root}/cri-dockerd/sandbox/", f"{self.sandbox.parent}/")
        return prove(
            identity, str(self.root / "kubelet"), asks=self.asks, pod_logs=str(self.logs), sandboxes=directories
        )


@pytest.fixture
def docker(root_dir: Path) -> Docker:
    return Docker(root_dir)


@pytest.mark.parametrize(
    "cgroup", [None, f"kubepods-besteffort-pod{UID}.slice:docker:{ID}"], ids=["cgroupfs", "systemd"]
)
def test_container_is_proved_by_its_termination_log(docker: Docker, cgroup: str | None) -> None:
    identity = docker.named(cgroup)
    assert (identity.engine, identity.kubernetes, identity.types) == ("docker", True, APP_TYPES)
    assert identity.as_dict() == NAMES


def test_sandbox_is_proved_by_dockershims_file(docker: Docker) -> None:
    docker.becomes_sandbox()
    identity = docker.named()
    assert (identity.kubernetes, identity.types) == (True, ("sandbox",))
    assert identity.as_dict() == {key: value for key, value in NAMES.items() if key != "container"}


@pytest.mark.parametrize("driver", ["vfs/dir/0a", "rootfs/overlayfs/" + ID, "devicemapper/mnt/0a/rootfs"])
def test_dockerds_directory_is_above_the_root_file_system_of_any_storage_driver(docker: Docker, driver: str) -> None:
    docker.spec["root"]["path"] = f"{docker.root}/docker/{driver}"
    assert docker.named().as_dict() == NAMES


def test_pod_is_unknown_without_its_directory_of_logs(docker: Docker) -> None:
    """Then nothing is excluded by namespace, and the container keeps its allocation."""
    for change in ((docker.logs / f"other_victim-labnode_{UID}").mkdir, lambda: shutil.rmtree(docker.logs)):
        change()
        identity = docker.named()
        assert (identity.kubernetes, identity.as_dict()) == (True, {"uid": UID, "container": "evil"})


def volumes_from(docker: Docker) -> None:
    record = json.loads(docker.record.read_text())
    docker.record.write_text(json.dumps({**record, "VolumesFrom": ["victim"]}))


def labelled(docker: Docker, container_id: str, labels: dict[str, str]) -> Path:
    """dockerd's other file about a container."""
    path = docker.record.parent.parent / container_id / "config.v2.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"Config": {"Labels": labels}}))
    return path


@pytest.mark.parametrize("is_sandbox", [False, True], ids=["container", "sandbox"])
def test_labels_of_the_pod_are_those_of_its_sandbox(docker: Docker, is_sandbox: bool) -> None:
    """An image's LABEL `tier` is none of the pod. Without a policy that asks, no file is read for labels."""
    sandbox_id = "7c2015acf3dd7d616091152abe92a0216f181eb16958f2f5560fc65dde81fc2c"
    of_sandbox = {"io.kubernetes.pod.name": "p", "annotation.a": "b", "tier": "web"}
    if is_sandbox:
        docker.becomes_sandbox()
    else:
        own = {"io.kubernetes.sandbox.id": sandbox_id, "tier": "of the image"}
        labelled(docker, ID, own)
    file = labelled(docker, ID if is_sandbox else sandbox_id, of_sandbox)
    assert docker.named().labels is None
    docker.asks = True
    assert docker.named().labels == {"tier": "web"}
    file.write_text("{")
    assert (docker.named().labels, docker.named().kubernetes) == (None, True)
    file.unlink()
    assert (docker.named().labels, docker.named().kubernetes) == (None, True)


def log_of(docker: Docker) -> dict[str, Any]:
    [mount] = [mount for mount in docker.spec["mounts"] if mount["destination"] == "/dev/termination-log"]
    found: dict[str, Any] = mount
    return found


def another_directory(docker: Docker) -> None:
    log_of(docker)["source"] = f"/srv/data/pods/{UID}/containers/evil/0badcafe"


def another_file(docker: Docker) -> None:
    log_of(docker)["source"] = f"{docker.root}/kubelet/pods/{UID}/containers/evil/../../x"


def another_name(docker: Docker) -> None:
    log = log_of(docker)
    docker.spec["mounts"].insert(0, {**log, "source": log["source"].replace("/evil/", "/other/")})


def cgroup(docker: Docker) -> None:
    docker.spec["linux"]["cgroupsPath"] = f"/kubepods/pod1-2-3/{ID}"


def identifier(docker: Docker) -> None:
    docker.spec["linux"]["cgroupsPath"] = f"/kubepods/pod{UID}/0a"


def relative_root(docker: Docker) -> None:
    docker.spec["root"]["path"] = "rootfs"


SANDBOX_UNKNOWN: dict[str, Callable[[Docker], None]] = {
    "a file of another sandbox": lambda docker: docker.sandbox.rename(docker.sandbox.with_name("0" * 64)) and None,
    "no record of dockerd": lambda docker: docker.record.unlink(),
    "a record that others can write": lambda docker: docker.record.chmod(0o666),
    "a sandbox file that others can write": lambda docker: docker.sandbox.parent.chmod(0o777),
    "an id that docker does not give": identifier,
    "a root file system elsewhere": relative_root,
}
UNKNOWN: dict[str, Callable[[Docker], None]] = {
    "--volumes-from": volumes_from,
    "a directory like kubelet's": another_directory,
    "a path that leads elsewhere": another_file,
    "mounts of two containers": another_name,
    "the cgroup of another pod": cgroup,
    "no record of dockerd": lambda docker: docker.record.unlink(),
    "a record that others can write": lambda docker: docker.record.chmod(0o666),
    "a record that is cut": lambda docker: docker.record.write_text("{") and None,
    "a record that is too long": lambda docker: (
        docker.record.write_text(json.dumps({"Binds": ["a"] * 20_000})) and None
    ),
    "a record that is no object": lambda docker: docker.record.write_text("[]") and None,
    "an id that docker does not give": identifier,
    "a root file system elsewhere": relative_root,
}


@pytest.mark.parametrize("way", UNKNOWN)
def test_container_without_each_proof_is_unknown(docker: Docker, way: str) -> None:
    UNKNOWN[way](docker)
    identity = docker.named()
    assert (identity.kubernetes, identity.types, identity.as_dict()) == (None, TYPES, {})


@pytest.mark.parametrize("way", SANDBOX_UNKNOWN)
def test_sandbox_without_each_proof_is_unknown(docker: Docker, way: str) -> None:
    docker.becomes_sandbox()
    SANDBOX_UNKNOWN[way](docker)
    identity = docker.named()
    assert (identity.kubernetes, identity.types, identity.as_dict()) == (None, TYPES, {})
