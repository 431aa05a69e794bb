"""config/examples/podpreset.yaml on a scratch node, and kubelet's part of it: a directory for each pod."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import proc
from harness.paths import TOP

from e2e.cri.client import Container, Pod
from e2e.cri.fixtures import StartPod
from e2e.cri.node import Containerd

FRONTEND = {"role": "frontend"}
RULES = """\
  - name: database
    match: {podSelector: {matchLabels: {role: database}}}
    mounts:
    - {emptyDir: {}, mountPath: /cache}
"""


class Presets:
    """The node of a containerd. `pods`: kubelet's directory of pods."""

    def __init__(self, containerd: Containerd) -> None:
        self.containerd = containerd
        node = containerd.node
        self.pods = node.directory / "kubelet/pods"
        files = node.directory / "presets"
        files.mkdir(exist_ok=True)
        (files / "number_of_members").write_text("1\n")
        (files / "config.json").write_text("{}\n")
        text = (TOP / "config/examples/podpreset.yaml").read_text().replace("/etc/reassert/presets", str(files))
        self.example = text.replace("spec:\n", f"spec:\n  kubelet: {{root: {self.pods.parent}}}\n", 1)
        node.write_policy(self.example + RULES)
        (node.store / "cri").mkdir(parents=True, exist_ok=True)
        (node.store / "cri/containerd").write_text(f"{containerd.directory}/containerd.sock\n")

    def pod(self, start_pod: StartPod, *variant: str, role: str = "frontend", **pod: str) -> Pod:
        """A pod, for which kubelet makes its directory before it asks for anything."""
        started = start_pod(*variant, labels={"role": role}, **pod)
        self.directory(started).mkdir(parents=True, mode=0o750)
        return started

    def directory(self, pod: Pod) -> Path:
        """kubelet's directory of a pod."""
        return self.pods / pod.config.metadata.uid

    def gone(self, pod: Pod) -> None:
        """The pod ends, and kubelet removes its directory, but not across a mount (cleanupOrphanedPodDirs)."""
        pod.remove()
        shutil.rmtree(self.directory(pod))

    def in_memory(self) -> dict[str, list[str]]:
        """By UID of the pods with emptyDirs in memory: where a tmpfs of these is mounted on the node."""
        mounted = [mount.point for mount in proc.read_mounts(self.containerd.root.path("proc/1")) if mount.root == "/"]
        found: dict[str, list[str]] = {
            path.name: [] for path in self.containerd.root.path("run/reassert/volumes").glob("*/*")
        }
        for point in mounted:
            if point.startswith("/run/reassert/volumes/"):
                found.setdefault(point.split("/")[5], []).append(point)
        return found


def sh(container: Container, script: str) -> str:
    """The output of a shell in a container."""
    return container.exec("/bin/sh", "-c", script).strip()


def assert_its_pod_alone_shares(presets: Presets, start_pod: StartPod, *variant: str) -> tuple[Pod, Container]:
    """Two containers of a pod share /cache, of every user; another pod has its own, which is empty."""
    pod, other = presets.pod(start_pod, *variant, name="a"), presets.pod(start_pod, *variant, name="b")
    one, two = pod.run(name="one"), pod.run(name="two")
    theirs = other.run(name="one")
    for path in ("/cache", "/scratch") if presets.in_memory() else ("/cache",):
        assert sh(one, f"echo mine > {path}/file; busybox stat -c %a {path}; busybox ls -A {path}") == "777\nfile"
        assert sh(two, f"cat {path}/file") == "mine"
        assert sh(theirs, f"busybox ls -A {path}") == ""
        [mount] = two.mounts(path)
        assert {"rw", "nosuid", "nodev"} <= set(mount.options)
    assert (presets.pods.stat().st_mode & 0o777, presets.directory(pod).stat().st_mode & 0o777) == (0o755, 0o750)
    assert [path.stat().st_mode & 0o777 for path in presets.directory(pod).iterdir()] == [0o700]
    return pod, two
