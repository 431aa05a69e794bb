"""The node of the innocents with a real containerd, whose NRI asks `reassert nri`, and whose hook looks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from harness.paths import RUNTIMES
from harness.tools import cleaned, need

from e2e.cri.client import Cri, CriError, call, key_values, messages, wait_for
from e2e.cri.images import PAUSE, layout, write_images
from e2e.cri.node import NRI_GENERATIONS, remove_cgroups
from e2e.innocents import containers
from e2e.innocents.containers import HOSTILE, Tried
from e2e.innocents.node import HOOK, OPTIONS, InnocentNode
from e2e.innocents.rows import EXCLUDED, Row

IMAGE = "reassert.test/innocent:1"
NRI_SOCKET = "/run/nri/nri.sock"
_CRI_SOCKET = "/run/containerd/containerd.sock"
_END = "innocent ends"

_CONFIG = f"""\
version = 2
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{NRI_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"  # an overlay takes none of an overlay's directories, as this node's are
"""

_HANDLER = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/base.json"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
  BinaryName = "{binary}"
"""


class InnocentContainerd(InnocentNode):
    """The node, with the files of the Debian that the containerd is of. Every pod has the node's network."""

    def __init__(self, directory: Path) -> None:
        root = NRI_GENERATIONS["2.1"].root
        need((root / ".complete").exists(), f"{root} (tests/roots.sh)")
        super().__init__(directory, root)
        self._cgroup = f"/reassert-tests-{directory.name}"
        self._log = directory / "containerd.output"
        self.cri = Cri(self.path(_CRI_SOCKET), self._cgroup, Path("/var/log/pods"))
        self._daemon: subprocess.Popen[bytes] | None = None

    def start_engine(self) -> None:
        """Start containerd, with the images."""
        self._base_spec()
        handlers = "".join(_HANDLER.format(name=name, binary=path) for name, path in RUNTIMES.items())
        self.write("/etc/containerd/config.toml", _CONFIG + handlers)
        with self._log.open("wb") as log:
            command = self.command("/usr/bin/containerd")
            self._daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._is_up, "containerd", self._log.read_text)
        self._import_images()

    def _base_spec(self) -> None:
        """As `install --adapter nri` writes it."""
        spec = json.loads(self.run("/usr/bin/ctr", "oci", "spec").stdout)
        spec["process"]["env"] = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
        entry = {"path": HOOK, "args": [HOOK, "createRuntime"], "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 30}
        spec["hooks"] = {"createRuntime": [entry]}
        self.write("/etc/containerd/base.json", json.dumps(spec))

    def _is_up(self) -> bool:
        assert self._daemon
        assert self._daemon.poll() is None, self._log.read_text()
        try:
            return bool(self.cri.version())
        except CriError:
            return False

    def _import_images(self) -> None:
        images = write_images(self.path("/srv"))
        containers.image(self, "/run/innocent")
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for path in sorted((self.path("/run/innocent") / "rootfs").iterdir()):
                tar.add(path, path.name)
        shutil.rmtree(self.path("/run/innocent"))
        env = [f"{name}={value}" for name, value in HOSTILE.items() if name != "PYTHONHTTPSVERIFY"]
        images.append(self.path("/srv/innocent.tar"))
        images[-1].write_bytes(layout(IMAGE, env, layer.getvalue()))
        for path in images:
            name = f"/srv/{path.name}"
            self.run(
                "/usr/bin/ctr", "--namespace", "k8s.io", "image", "import", "--local", "--snapshotter", "native", name
            )
            path.unlink()
        wait_for(lambda: self.cri.has_image(IMAGE) and self.cri.has_image(PAUSE), "the images")

    def start_plugin(self) -> None:
        """Start `reassert nri` and wait until containerd has taken it in."""
        self._start("nri", "--socket", NRI_SOCKET, *OPTIONS)
        output = self.directory / "nri.output"
        wait_for(lambda: "nri.connected" in output.read_text(), "the plugin's connection", output.read_text)

    def close(self) -> None:
        """End it, with what a pod left that could not be removed."""
        self.cri.close()
        if self._daemon:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(600)
        own = self.path("/").stat()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                shim = (process / "exe").readlink().name == "containerd-shim-runc-v2"
                if shim and os.path.samestat((process / "root").stat(), own):
                    os.kill(int(process.name), signal.SIGKILL)
        super().close()
        remove_cgroups(self._cgroup[1:])


def start(node: InnocentContainerd, row: Row, namespace: str, runtime: str) -> Tried:
    """The row as a pod of one container, from its sandbox to the end of its process."""
    containers.prepare(node, row)
    node.events()
    pod = messages.PodSandboxConfig(
        metadata=messages.PodSandboxMetadata(name=row.name, uid=containers.uid(row), namespace=namespace),
        log_directory=f"/var/log/pods/{row.name}",
        linux=messages.LinuxPodSandboxConfig(
            cgroup_parent=node.cri.cgroup_parent,
            security_context=messages.LinuxSandboxSecurityContext(
                namespace_options=_namespaces(row), privileged=bool(row.securityContext.get("privileged"))
            ),
        ),
    )
    request = messages.RunPodSandboxRequest(config=pod, runtime_handler=runtime)
    sandbox = call(node.cri.runtime.RunPodSandbox, request).pod_sandbox_id
    try:
        create = messages.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=container(row, namespace), sandbox_config=pod
        )
        try:
            made = call(node.cri.runtime.CreateContainer, create).container_id
            call(node.cri.runtime.StartContainer, messages.StartContainerRequest(container_id=made))
        except CriError as error:
            return containers.read(1, str(error), node)
        log = node.path(f"/var/log/pods/{row.name}/main.log")
        wait_for(lambda: _END in log.read_text(), f"the end of {row.name}", log.read_text)
        written = [line.split(" ", 3)[1::2] for line in log.read_text().splitlines()]  # time, stream, P or F, text
        said = [text for stream, text in written if stream == "stdout" and text != _END]
        return containers.read(
            0, "\n".join([*said, *(text for stream, text in written if stream == "stderr"), ""]), node
        )
    finally:
        for name, kind in (("StopPodSandbox", "Stop"), ("RemovePodSandbox", "Remove")):
            of_pod = getattr(messages, f"{kind}PodSandboxRequest")(pod_sandbox_id=sandbox)
            cleaned(f"pod {row.name}", lambda name=name, of_pod=of_pod: call(getattr(node.cri.runtime, name), of_pod))  # type: ignore[misc]  # a loop's variables
        shutil.rmtree(node.path(f"/var/log/pods/{row.name}"), ignore_errors=True)


def container(row: Row, namespace: str) -> Any:
    """What kubelet asks for, with the files that it adds."""
    pod, asked = f"/var/lib/kubelet/pods/{containers.uid(row)}", row.securityContext
    mounts = [
        messages.Mount(container_path="/etc/hosts", host_path=f"{pod}/etc-hosts"),
        messages.Mount(container_path="/dev/termination-log", host_path=f"{pod}/containers/main/0a"),
    ]
    if row.automountServiceAccountToken:
        token = f"{pod}/volumes/kubernetes.io~projected/token"
        mounts.append(messages.Mount(container_path=containers.TOKEN, host_path=token, readonly=True))
    for number, path in enumerate(row.emptyDirs):
        directory = f"{pod}/volumes/kubernetes.io~empty-dir/e{number}"
        mounts.append(messages.Mount(container_path=path, host_path=directory))
    propagation = {
        "HostToContainer": messages.PROPAGATION_HOST_TO_CONTAINER,
        "Bidirectional": messages.PROPAGATION_BIDIRECTIONAL,
    }
    mounts += [
        messages.Mount(
            container_path=volume["mountPath"],
            host_path=volume["hostPath"] + ("/" + volume["subPath"] if "subPath" in volume else ""),
            readonly=volume.get("readOnly", False),
            propagation=propagation.get(volume.get("mountPropagation", ""), messages.PROPAGATION_PRIVATE),
        )
        for volume in row.volumes
    ]
    env = dict(row.env)
    if namespace == EXCLUDED:  # NRI refuses a name that has to be absent, instead of removing it
        env["PYTHONHTTPSVERIFY"] = HOSTILE["PYTHONHTTPSVERIFY"]
    security = messages.LinuxContainerSecurityContext(
        namespace_options=_namespaces(row),
        privileged=asked.get("privileged", False),
        capabilities=messages.Capability(
            add_capabilities=containers.added(row),
            drop_capabilities=asked.get("capabilities", {}).get("drop", ()),
        ),
        readonly_rootfs=asked.get("readOnlyRootFilesystem", False),
        no_new_privs=asked.get("allowPrivilegeEscalation") is False,
        run_as_user=messages.Int64Value(value=asked.get("runAsUser", 0)),
        run_as_group=messages.Int64Value(value=asked.get("runAsGroup", 0)),
    )
    script = f"{containers.script(row, namespace == EXCLUDED)}\necho {_END}"
    return messages.ContainerConfig(
        metadata=messages.ContainerMetadata(name="main"),
        image=messages.ImageSpec(image=IMAGE, user_specified_image=IMAGE),
        command=["/bin/sh", "-c", script],
        envs=key_values(env.items()),
        mounts=mounts,
        annotations=row.annotations,
        labels={"io.kubernetes.pod.uid": containers.uid(row), "io.kubernetes.pod.namespace": namespace},
        log_path="main.log",
        linux=messages.LinuxContainerConfig(security_context=security),
    )


def _namespaces(row: Row) -> Any:
    """The node's network, since nobody sets up another."""
    return messages.NamespaceOption(
        network=messages.NODE,
        pid=messages.NODE if row.hostPID else messages.CONTAINER,
        ipc=messages.NODE if row.hostIPC else messages.POD,
    )
