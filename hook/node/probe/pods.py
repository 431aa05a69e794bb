"""Test pods through CRI: containerd and CRI-O.

No image is pulled: a test pod runs the engine's sandbox image, which every node that ever ran a pod has. Its program
only sleeps. kubelet ends pods that the API server does not know within seconds, so a test pod can end before it is
examined: then ContainerGone is raised.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hook.core.base.system import stat_of
from hook.core.container.identity import CONTAINER, CONTAINERD, Identity
from hook.inside.process import ContainerGone, is_gvisor, processes
from hook.node.errors import NodeError
from hook.node.probe import containers, starter
from hook.node.probe.cri import CONTAINER as OWN
from hook.node.probe.cri import EXITED, NODE, READY, CallFailed, Cri, information, parsed, uninterrupted
from hook.node.probe.starter import NOTHING_MORE, Extra, Pairs
from hook.node.systemd import wait_until

LABEL = "reassert.probe"
"""The label of test pods. Its value is the token of the pod."""

_KUBELETS = "io.kubernetes."
"""The prefix of kubelet's labels, which CRI-O copies into config.json: its containers are identified by them."""

_BY_OTHERS = (
    "something else ended the test pod, kubelet for instance, which ends pods that the API server does not know"
)

_TOLD = (0, 137, 143)
"""Exit statuses of a sandbox image's program that was told to end: its own, and those by SIGKILL and SIGTERM."""

_EXIT_SECONDS = 2.0
"""The wait for the engine to notice that a process has ended, in seconds."""

_REMOVALS = 4
"""Attempts to remove a pod: an attempt fails while another process removes it."""

_NAMESPACES = {"network": NODE, "pid": OWN}
"""The network namespace is the node's, so no CNI plugin and no address is needed."""


class PodStarter:
    """A Starter through a CRI socket.

    `engine`: containerd or cri-o. `image`: the sandbox image of the engine's configuration. `systemd`: whether the
    engine uses systemd's cgroup driver; None: ask the engine, which works with containerd.
    """

    def __init__(
        self, engine: str, socket: str, image: str, systemd: bool | None = None, namespace: str = "default"
    ) -> None:
        self._cri = Cri(socket)
        self.marks = starter.Marks()
        self._image = image
        self._systemd = systemd
        self._attempt = 0
        self._ready = False
        self._command: list[str] | None = None
        self.identity = Identity(
            engine,
            True,
            namespace=namespace,
            pod=f"{starter.NAME}-{starter.new_token()}",
            uid=str(uuid.uuid4()),
            container="probe",
            types=(CONTAINER,),
            image=image,
        )

    def close(self) -> None:
        """Closes the connection and removes pods that are left after a signal."""
        with uninterrupted():
            if self._ready:
                with suppress(NodeError):
                    _remove_pods(self._cri, starter.own)
            self.marks.clear()
            self._cri.close()

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = (), extra: Extra = NOTHING_MORE) -> _Pod:
        """Starts a pod with one container. Raises NotStarted, Unsupported, NodeError."""
        self.prepare()
        if extra.cdi and not self._has_cdi():
            raise starter.Unsupported(f"{self.identity.engine} does not give containers CDI devices that CRI asks for")
        self._attempt += 1  # an engine reserves the names of a pod until it is completely removed
        token = starter.new_token()
        logs = starter.scratch()
        identity = self.identity
        security = {"namespace_options": _NAMESPACES, "privileged": extra.privileged}
        labels = {f"{_KUBELETS}pod.{key}": getattr(identity, key) for key in ("namespace", "uid")}
        labels[f"{_KUBELETS}pod.name"] = identity.pod
        config = {
            "metadata": {
                "name": identity.pod,
                "uid": identity.uid,
                "namespace": identity.namespace,
                "attempt": self._attempt,
            },
            "log_directory": logs,
            "labels": {LABEL: token, **labels},
            "annotations": dict(extra.pod_annotations),
            "linux": {
                "cgroup_parent": self._cgroup_parent(handler),
                "security_context": security,
            },
        }
        container = {
            "metadata": {"name": identity.container},
            # CRI-O checks the signature of the second one (signature_policy).
            "image": {"image": self._image, "user_specified_image": self._image},
            "labels": {**labels, f"{_KUBELETS}container.name": identity.container},
            "envs": [{"key": name, "value": value} for name, value in (*env, (starter.MARKER, token))],
            "mounts": [{"host_path": host, "container_path": path} for host, path in mounts],
            "devices": [{"host_path": h, "container_path": path, "permissions": "rwm"} for h, path in extra.devices],
            "CDI_devices": [{"name": name} for name in extra.cdi],
            "annotations": dict(extra.annotations),
            "log_path": "probe.log",
            "linux": {"security_context": {**security, **_user(extra.user)}},
        }
        pod = _Pod(self._cri, token, logs, self._command, self.marks, reads=extra.user is not None)
        try:
            pod.start(handler, config, container)
        except CallFailed as error:
            with suppress(NodeError):  # report why it did not start
                pod.remove()
            raise starter.NotStarted(" ".join(str(error).split())) from None
        except BaseException:
            with suppress(NodeError):
                pod.remove()
            raise
        return pod

    def prepare(self) -> None:
        """Looks up the image and calls `clean`, once. Raises NodeError."""
        if self._ready:
            return
        found = self._cri.image(self._image)
        if found is None:
            raise NodeError(
                f"the sandbox image {self._image} is not on this node, so no test pod can be started; start any pod "
                f"through kubelet, or pull the image: crictl --runtime-endpoint unix://{self._cri.socket} "
                f"pull {self._image}"
            )
        self._command = _entrypoint(found)
        self.clean()
        self.marks.add(str(self.identity.uid))
        self._ready = True

    def clean(self) -> None:
        """Removes test pods of interrupted commands. Raises NodeError."""
        _remove_pods(self._cri, starter.abandoned)

    def _has_cdi(self) -> bool:
        """Whether the engine acts on CRI's CDI devices: containerd says so from 1.7 on, and CRI-O always does."""
        if self.identity.engine != CONTAINERD:
            return True
        return bool(parsed(self._cri.call("Status", verbose=True), "config").get("enableCDI"))

    def _cgroup_parent(self, handler: str) -> str:
        """Returns a cgroup that exists already, so that none is left behind: system.slice or the root."""
        if self._systemd is None:
            config = parsed(self._cri.call("Status", verbose=True), "config")
            found: Any = config
            for key in ("containerd", "runtimes", handler, "options"):
                found = (found or {}).get(key)
            return "system.slice" if (found or {}).get("SystemdCgroup") or config.get("systemdCgroup") else "/"
        return "system.slice" if self._systemd else "/"


class _Pod:
    """A running test container in its own pod."""

    def __init__(
        self, cri: Cri, token: str, logs: str, command: list[str] | None, marks: starter.Marks, reads: bool
    ) -> None:
        """`command`: the image's command, to be executed in it; None if the image has none. `reads`: for `content`."""
        self._cri = cri
        self._marks = marks
        self._logs = logs
        self._command = command
        self._token = token
        self._reads = reads
        self._container = ""
        self._reader: list[str] = []
        self._tools = ""
        self.pid = 0

    def start(self, handler: str, config: Mapping[str, Any], container: dict[str, Any]) -> None:
        """Starts pod and container with kubelet's calls. Raises CallFailed, ContainerGone, NodeError, OSError."""
        sandbox = self._cri.call("RunPodSandbox", config=config, runtime_handler=handler).pod_sandbox_id
        try:
            status = self._cri.call("PodSandboxStatus", pod_sandbox_id=sandbox, verbose=True)
            if self._reads or is_gvisor(information(status).get("pid") or 0):
                self._tools = starter.scratch(starter.EXECUTABLE)
                self._reader = containers.unpack_reader(self._tools)
                home = {"host_path": self._tools + containers.HOME, "container_path": containers.HOME, "readonly": True}
                container["mounts"].append({**home, "selinux_relabel": True})
            created = self._cri.call("CreateContainer", pod_sandbox_id=sandbox, config=container, sandbox_config=config)
            self._container = created.container_id
            self._marks.add(self._container)
            self._cri.call("StartContainer", container_id=self._container)
        except CallFailed:
            if self._is_ready(sandbox):
                raise
            raise ContainerGone(_BY_OTHERS) from None
        try:
            status = self._cri.call("ContainerStatus", container_id=self._container, verbose=True)
        except CallFailed:
            raise ContainerGone(_BY_OTHERS) from None
        self.pid = information(status).get("pid") or 0
        if not self.pid:
            raise self.ended(NodeError(f"the engine does not report the pid of container {self._container}"))

    def _is_ready(self, sandbox: str) -> bool:
        pods = self._cri.call("ListPodSandbox").items
        return any((pod.id, pod.state) == (sandbox, READY) for pod in pods)

    def ended(self, error: Exception) -> Exception:
        """ContainerGone or NotStarted, by the exit status of the engine; without one, `error`. Raises NodeError."""

        def exited() -> Any:
            status = self._cri.call("ContainerStatus", container_id=self._container).status
            return status if status.state == EXITED else None

        try:
            status = wait_until(exited, _EXIT_SECONDS, 0.05)
        except CallFailed:  # it was removed
            return ContainerGone(_BY_OTHERS)
        if status is None:
            return error
        if status.exit_code in _TOLD:
            return ContainerGone(_BY_OTHERS)
        said = f" ({status.reason})" if status.reason else ""
        return starter.NotStarted(f"its program ended by itself, with exit status {status.exit_code}{said}")

    def environ(self) -> list[str]:
        if self._reader:
            return os.fsdecode(self.content("/proc/1/environ")).rstrip("\0").split("\0")
        return starter.Process(self.pid, self._token).environ()

    def exec_environ(self, env: Pairs = ()) -> list[str]:
        """Returns the environment of the image's command, executed in it once more. Raises Unsupported, NodeError."""
        if env:
            raise starter.Unsupported("CRI's ExecSync has no env of its caller")
        if self._reader:
            return os.fsdecode(self.content("/proc/self/environ")).rstrip("\0").split("\0")
        if not self._command:
            raise NodeError("the image has no command that could be executed in the container")
        return self._cri.run(self._executed(self._command))

    def content(self, path: str) -> bytes:
        """As Running has it; only gVisor's test containers, and those with `Extra.user`, have a program that reads."""
        if not self._reader:
            raise starter.Unsupported("the image has no program that could read a file")
        command = [*self._reader, path]
        done = self._cri.call("ExecSync", container_id=self._container, cmd=command, timeout=int(starter.EXEC_SECONDS))
        if done.exit_code:
            raise NodeError(done.stderr.decode(errors="replace").strip() or f"head {path} ended with {done.exit_code}")
        return bytes(done.stdout)

    def annotations(self) -> dict[str, str]:
        """Returns the annotations of its config.json: the shim's, or conmon's, working directory is a bundle."""
        parent = stat_of(self.pid)[1]
        bundle = os.path.realpath(f"/proc/{parent}/cwd")
        for path in (f"{bundle}/config.json", f"{os.path.dirname(bundle)}/{self._container}/config.json"):
            if self._container in path and os.path.exists(path):
                return dict(json.loads(Path(path).read_bytes()).get("annotations") or {})
        raise starter.Unsupported("the container's config.json was not found")

    async def _executed(self, command: list[str]) -> list[str]:
        before = processes()
        calling = asyncio.ensure_future(
            self._cri.ask("ExecSync", container_id=self._container, cmd=command, timeout=int(starter.EXEC_SECONDS))
        )
        found = None
        while found is None and not calling.done():
            found = starter.Process(self.pid, self._token).executed(before)
            if found is None:
                await asyncio.sleep(0.01)
        if found is not None:
            # This ends the call too. If the call were cancelled while the runtime is still starting the program,
            # containerd 1.7 would wait for half a minute before it stops the container.
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
        try:
            answer = await calling
        except NodeError as error:
            if found is None:
                raise NodeError(f"{command[0]}, executed in the container, did not start: {error}") from None
        if found is None:
            said = answer.stderr.decode(errors="replace").strip()
            raise NodeError(f"{command[0]} ended at once in the container ({answer.exit_code}) {said}".strip())
        return found[1]

    def remove(self) -> None:
        _remove_pods(self._cri, lambda token: token == self._token)
        for directory in filter(None, (self._logs, self._tools)):
            shutil.rmtree(directory, ignore_errors=True)


def _user(user: int | None) -> dict[str, Any]:
    """The fields of a container's security context for a user and its group."""
    return {} if user is None else {"run_as_user": {"value": user}, "run_as_group": {"value": user}}


def _remove_pods(cri: Cri, which: Callable[[str], bool]) -> None:
    """Removes the test pods whose token `which` accepts. Raises NotRemoved, NodeError."""
    for pod in cri.call("ListPodSandbox").items:
        if LABEL in pod.labels and which(pod.labels[LABEL]):
            _remove_pod(cri, pod.id)


def _remove_pod(cri: Cri, pod: str) -> None:
    for attempt in range(1, _REMOVALS + 1):
        try:
            _kill_containers(cri, pod)
            cri.call("StopPodSandbox", pod_sandbox_id=pod)
            cri.call("RemovePodSandbox", pod_sandbox_id=pod)
            return
        except CallFailed as error:
            if pod not in [left.id for left in cri.call("ListPodSandbox").items]:
                return
            if attempt == _REMOVALS:
                raise starter.NotRemoved(f"pod {pod} cannot be removed (crictl rmp -f {pod}): {error}") from None
        time.sleep(0.5)


def _kill_containers(cri: Cri, pod: str) -> None:
    """Ends the containers of a pod at once: CRI-O's StopPodSandbox would wait ten seconds for them."""
    for container in cri.call("ListContainers", filter={"pod_sandbox_id": pod}).containers:
        with suppress(CallFailed):  # the container has ended; StopPodSandbox reports any other error
            cri.call("StopContainer", container_id=container.id, timeout=0)


def _entrypoint(image: dict[str, Any]) -> list[str] | None:
    """Returns the command of an image, from the OCI image config that containerd and CRI-O both report."""
    config = image.get("imageSpec", {}).get("config", {})
    command = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return command or None
