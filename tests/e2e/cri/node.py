"""A scratch containerd in namespaces of its own: what it leaves behind goes away with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import proc
from harness.node import Node
from harness.paths import REASSERT, ROOTS
from harness.root import OverlayRoot
from harness.tools import cleaned, need, remove_tree, run

from e2e.cri.client import Cri, CriError, started_environ, wait_for
from e2e.cri.images import IMAGES, PAUSE, write_images

CGROUPS = Path("/sys/fs/cgroup")

_OVERLAY = Path("/run/containerd")
"""Where its root's overlay is, on a tmpfs that only its mount namespace has."""

_BEFORE = """
mount -t tmpfs -o mode=0700 tmpfs '{image_store}'
mount -t tmpfs -o mode=0711 tmpfs "$directory"
"""
_FINISH = """
mount --make-rshared /
mkdir -p /run/containerd
touch /etc/hosts /etc/resolv.conf
[ -e /var/run ] || ln -s /run /var/run
"""

_CONFIG = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{directory}/cni"
  conf_dir = "{directory}/cni"
"""

_NRI = """\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{directory}/nri.sock"
  plugin_path = "{directory}/nri-plugins"
  plugin_config_path = "{directory}/nri-conf"
"""

_HANDLER = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
  runtime_type = "{shim}"
  pod_annotations = {annotations}
  container_annotations = {annotations}
  base_runtime_spec = "{base_spec}"
"""

_BINARY = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
  BinaryName = "{binary}"
"""


@dataclass(frozen=True)
class Generation:
    """One containerd to test with: its root file system, of a Debian (tests/roots.sh), and its configuration."""

    root: Path
    config: str = _CONFIG


GENERATIONS = {"1.6": Generation(ROOTS / "bookworm")}

NRI_GENERATIONS = {
    version: Generation(ROOTS / suite, _CONFIG + _NRI) for version, suite in {"1.7": "trixie", "2.1": "forky"}.items()
}
"""Those that know NRI, in roots of their own. All read a version 2 configuration."""


@dataclass(frozen=True)
class Handler:
    """A runtime handler. `open_to_pods`: pods' annotations are copied into the OCI spec, all of them.

    `base_spec`: what changes the engine's default OCI spec into the handler's base_runtime_spec, if anything.
    `shim`: its runtime type; one that calls no OCI runtime has no `binary`.
    """

    name: str
    binary: str
    open_to_pods: bool = False
    base_spec: Callable[[dict[str, Any]], None] | None = None
    shim: str = "io.containerd.runc.v2"


class Containerd:
    """The containerd of a scratch node. `node`: the policy, store and event log of its dispatchers.

    `root`: its root file system, whose `pid` is the first process of its namespaces.

    Image store and shims' sockets lie on tmpfs that only its mount namespace has; what the tests read (bundles, logs,
    the CRI socket) lies in the scratch directory.
    """

    def __init__(self, node: Node, generation: Generation, handlers: list[Handler]) -> None:
        self.node = node
        self.directory = node.directory / "containerd"
        self.tmp = self.directory / "tmp"
        for path in (self.directory, self.directory / "root", self.tmp):
            path.mkdir()
        self._generation = generation
        self._inside_and_out = [node.directory, REASSERT.parent]
        self._cgroup = f"reassert-tests-{node.directory.name}"
        self._config = self.directory / "config.toml"
        self._logfile = self.directory / "containerd.log"
        self._socket = self.directory / "containerd.sock"
        self.root = self._root()
        self._config.write_text(self._configuration(handlers))
        self._daemon: subprocess.Popen[bytes] | None = None
        self.cri = Cri(self._socket, "/" + self._cgroup, node.directory / "pods")

    def _configuration(self, handlers: list[Handler]) -> str:
        parts = [self._generation.config.format(directory=self.directory, pause=PAUSE)]
        for handler in handlers:  # in these patterns a * does not reach over a slash (Go's filepath.Match)
            annotations = '["*", "*/*"]' if handler.open_to_pods else "[]"
            base_spec = self._base_spec(handler)
            parts.append(
                _HANDLER.format(name=handler.name, shim=handler.shim, annotations=annotations, base_spec=base_spec)
            )
            if handler.binary:
                parts.append(_BINARY.format(name=handler.name, binary=handler.binary))
        return "".join(parts)

    def _base_spec(self, handler: Handler) -> str:
        """Path of the handler's base_runtime_spec, "" for the engine's own default."""
        if handler.base_spec is None:
            return ""
        spec = json.loads(run(*self.root.command("ctr", "oci", "spec")).stdout)
        handler.base_spec(spec)
        path = self.directory / f"base-{handler.name}.json"
        path.write_text(json.dumps(spec))
        return str(path)

    def _root(self) -> OverlayRoot:
        _OVERLAY.mkdir(exist_ok=True)
        lower = self._generation.root
        need((lower / ".complete").exists(), f"{lower} (tests/roots.sh)")
        return OverlayRoot(
            _OVERLAY,
            lower,
            self._inside_and_out,
            before=_BEFORE.format(image_store=self.directory / "root"),
            finish=_FINISH,
            options=("--pid", "--fork", "--mount-proc", "--propagation", "private"),
        )

    def start(self) -> None:
        """Start containerd and wait until its CRI answers."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "TMPDIR": str(self.tmp)}
        command = self.root.command("/usr/bin/containerd", "--config", str(self._config))
        with self._logfile.open("ab") as log:
            self._daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        wait_for(self._is_up, "containerd", lambda: self._logfile.read_text()[-2000:])

    def _is_up(self) -> bool:
        assert self._daemon and self._daemon.poll() is None, self._logfile.read_text()[-2000:]
        try:
            return bool(self.cri.version())
        except CriError:
            return False

    def stop(self) -> None:
        """Stop containerd alone, as `systemctl stop` does: shims and containers stay."""
        assert self._daemon
        os.kill(_child(self._daemon.pid), signal.SIGTERM)
        self._daemon.wait(600)
        self._socket.unlink(missing_ok=True)

    def import_images(self) -> None:
        """Give it every image of the tests."""
        for path in write_images(self.directory):
            self.ctr("image", "import", str(path))
            path.unlink()
        wait_for(lambda: all(map(self.cri.has_image, IMAGES)), "the images")

    def ctr(self, *arguments: str) -> str:
        """Standard output of containerd's own client, in Kubernetes' namespace."""
        return run(*self.ctr_command(*arguments)).stdout

    def ctr_command(self, *arguments: str) -> list[str]:
        """A command line for containerd's own client."""
        return self.root.command("ctr", "--address", str(self._socket), "--namespace", "k8s.io", *arguments)

    def close(self) -> None:
        """End everything that was started here, and remove the cgroups."""
        self.cri.close()
        cleaned("containerd", lambda: self._daemon and self._daemon.poll() is None and self.stop())
        cleaned("containerd's node", self.root.close)
        remove_cgroups(self._cgroup)

    def bundle(self, container: str) -> Path:
        """The OCI bundle of a pod's or container's id."""
        return self.directory / "state/io.containerd.runtime.v2.task/k8s.io" / container

    def annotations(self, container: str) -> dict[str, str]:
        """The annotations in the config.json that the container was made of."""
        found: dict[str, str] = json.loads((self.bundle(container) / "config.json").read_text())["annotations"]
        return found

    def environ(self, container: str) -> list[str]:
        """The environment of the first process of a pod's or container's id, from the node."""
        return started_environ((self._process(container) / "environ").read_text)

    def mounts(self, container: str, below: str) -> list[proc.Mount]:
        """What the first process of a pod's or container's id sees at or below a path, from the node."""
        return proc.read_mounts(self._process(container), below)

    def _process(self, container: str) -> Path:
        return self.root.path("proc") / (self.bundle(container) / "init.pid").read_text()

    def pods(self) -> list[str]:
        """Ids of everything that it has made and not removed: pods and their containers."""
        return self.ctr("container", "list", "--quiet").split()

    def remains(self, container: str) -> list[str]:
        """What the node still has of a pod's or container's id: processes, mounts, runtime state, cgroups, files."""
        found = [str(path) for path in (self.bundle(container), *self.tmp.iterdir()) if path.exists()]
        found += map(str, self.root.path("run/containerd/runc").glob(f"*/{container}"))
        for cgroup in _cgroups(self._cgroup):
            found += [path for path, _, _ in os.walk(cgroup) if container in path]
        found += [line for line in self.root.path("proc/1/mountinfo").read_text().splitlines() if container in line]
        for process in self.root.path("proc").glob("[0-9]*/cmdline"):
            try:
                command = process.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if container in command:
                found.append(command.replace("\0", " "))
        return found


@contextmanager
def running(node: Node, generation: Generation, handlers: list[Handler]) -> Iterator[Containerd]:
    """A containerd with the tests' images in it."""
    containerd = Containerd(node, generation, handlers)
    try:
        containerd.start()
        containerd.import_images()
        yield containerd
    finally:
        containerd.close()


def remove_cgroups(name: str) -> None:
    """Remove a top-level cgroup in every hierarchy (`cleaned`)."""
    for cgroup in _cgroups(name):
        if not cgroup.parent.resolve().is_mount():  # where a hierarchy was taken away, runtimes leave plain files
            remove_tree(cgroup)
            continue
        cleaned(str(cgroup), lambda cgroup=cgroup: _remove_cgroup(cgroup))  # type: ignore[misc]  # a loop's variable


def _remove_cgroup(cgroup: Path) -> None:
    for path, _, _ in os.walk(cgroup, topdown=False):
        os.rmdir(path)


def _child(pid: int) -> int:
    """The pid of a process's only child."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _cgroups(name: str) -> list[Path]:
    """A top-level cgroup in every hierarchy: one with cgroup v2, one for each controller with v1."""
    return [path for pattern in (name, f"*/{name}") for path in CGROUPS.glob(pattern) if path.is_dir()]
