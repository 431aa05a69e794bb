"""A node of its own for the innocents: its `/` is an overlay, and reassert is at its default paths.

`/run` and `/dev` are tmpfs below `/`, as on each Linux, and /var/log is a directory of it. Of the machine it has the
programs in /usr, /proc and /sys; nothing that a container writes reaches the machine.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.paths import REASSERT, RUNTIMES
from harness.root import OverlayRoot
from harness.tools import run
from unit.kubelet import checkpoint
from unit.nri.support import Peer
from unit.ops.trust.authority import bundle, ca, roots

from hook.core.container.allocation import checkpoint_path

_OPAQUE = 'import os, sys; os.setxattr(sys.argv[1], "trusted.overlay.opaque", b"y")'
_BEFORE = f"""
mount -t tmpfs -o mode=0755 tmpfs "$directory"
for name in boot dev etc home mnt opt proc root run srv sys tmp usr/local var; do
  mkdir -p "$directory/upper/$name"
  {sys.executable} -c '{_OPAQUE}' "$directory/upper/$name"
done
chmod 1777 "$directory/upper/tmp"
"""
_INSIDE = f"""
mkdir -p opt/reassert var/lib/kubelet
cp -a '{REASSERT.resolve().parent}' opt/reassert/program
mkdir dev/mqueue dev/char dev/disk dev/dri
mount -t mqueue mqueue dev/mqueue
"""

_FILES = {
    "/etc/os-release": "ID=debian\n",
    "/usr/lib/os-release": "ID=debian\n",
    "/etc/passwd": "root:x:0:0::/:/bin/sh\n",
    "/etc/group": "root:x:0:\n",
    "/etc/hostname": "node\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/resolv.conf": "nameserver 192.0.2.1\n",
    "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "/etc/localtime": "UTC\n",
    "/etc/krb5.conf": "[libdefaults]\n",
    "/run/reboot-required": "yes\n",
    "/run/systemd/system/marker": "\n",
    "/run/utmp": "",
    "/var/log/syslog": "a line\n",
    "/var/log/dmesg": "a line\n",
    "/var/log/pods/a/0.log": "a line\n",
    "/var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\n",
    "/var/lib/reassert-tests/marker": "\n",
}
_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/var/lib/kubelet/pod-resources/kubelet.sock",
    "/dev/log",
)

PROGRAM = "/opt/reassert/program/reassert"
POLICY, STORE, EVENTS = "/etc/reassert/policy.yaml", "/var/lib/reassert", "/var/log/reassert/events.jsonl"
AGENT = "/run/reassert/agent.sock"
HOOK = "/opt/reassert/reassert-hook"
OPTIONS = ["--policy", POLICY, "--store", STORE, "--events", EVENTS]


class InnocentNode(OverlayRoot):
    """The node. `close` ends it, and all that it has. `lower`: the root file system whose /usr it has."""

    def __init__(self, directory: Path, lower: Path = Path("/")) -> None:
        super().__init__(directory, lower, before=_BEFORE, inside=_INSIDE, finish="mount --make-rshared /")
        self.directory = directory
        self.policy = self.company = ""
        self._read = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._peer: Peer | None = None
        self._fill()

    def path(self, path: str) -> Path:
        """A file of the node as it is seen from here: /var/run is an absolute link, to /run."""
        return super().path(re.sub("^/var/run/", "/run/", path))

    def run(self, *command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the node."""
        return run(*self.command(*command), check=check, **options)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file of the node."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def set_policy(self, text: str) -> None:
        """Put a policy in force, and forget the events so far."""
        if self.policy != text:
            self.write(POLICY + ".new", text)
            self.path(POLICY + ".new").rename(self.path(POLICY))
            done = self.run(PROGRAM, "policy", "compile", *OPTIONS[:4])
            assert not done.stderr, done.stderr
            self.policy = text
        self.events()

    def events(self) -> list[dict[str, Any]]:
        """What the log has since the last call."""
        path = self.path(EVENTS)
        if not path.exists():
            return []
        with path.open() as file:
            file.seek(self._read)
            text = file.read()
            self._read = file.tell()
        return [json.loads(line) for line in text.splitlines()]

    def forget_events(self) -> None:
        """Begin a new log."""
        self.path(EVENTS).unlink(missing_ok=True)
        self._read = 0

    def wrapper(self, runtime: str, cold: bool = False) -> str:
        """Path of the wrapper in front of a real runtime."""
        return f"/opt/reassert/reassert-{runtime}{'-cold' if cold else ''}"

    def nri(self) -> Peer:
        """The runtime's side of the NRI connection of `reassert nri`, which runs on the node."""
        if self._peer is None:
            with socket.socket(socket.AF_UNIX) as listener:
                self.path("/run/nri").mkdir()
                listener.bind(str(self.path("/run/nri/nri.sock")))
                listener.listen()
                listener.settimeout(600)
                self._start("nri", "--socket", "/run/nri/nri.sock", *OPTIONS)
                self._peer = Peer(listener.accept()[0])
            self._peer.take_in()
        return self._peer

    def close(self) -> None:
        """End it."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
            process.wait(600)
        for listener in self._sockets:
            listener.close()
        if self._peer:
            self._peer.socket.close()
        super().close()
        shutil.rmtree(self.directory)

    def _start(self, *command: str) -> None:
        output = (self.directory / f"{command[0]}.output").open("wb")
        self._processes.append(
            subprocess.Popen(self.command(PROGRAM, *command), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        )

    def _fill(self) -> None:
        (self.path("/var") / "run").symlink_to("../run")
        for path, text in _FILES.items():
            self.write(path, text)
        for path in _SOCKETS:
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self._sockets.append(socket.socket(socket.AF_UNIX))
            self._sockets[-1].bind(str(self.path(path)))
        for path in (
            "/etc/reassert/trust.d",
            "/etc/ssl/certs",
            "/etc/pki",
            STORE,
            "/var/log/reassert",
            "/run/reassert",
        ):
            self.path(path).mkdir(parents=True, exist_ok=True)
        self.path("/run/reassert").chmod(0o700)
        kubelet = checkpoint_path("/var/lib/kubelet")
        self.path(kubelet).parent.mkdir(parents=True, exist_ok=True)
        self.path(kubelet).write_bytes(checkpoint())
        self._dispatcher(HOOK, "--hook", "--socket", AGENT)
        for name, real in RUNTIMES.items():
            self._dispatcher(self.wrapper(name), "--real", real, "--socket", AGENT, "--hook-file", HOOK)
            self._dispatcher(self.wrapper(name, cold=True), "--real", real)

    def _dispatcher(self, path: str, *options: str) -> None:
        self.write(path, self.run(PROGRAM, "dispatcher", *options, *OPTIONS).stdout, 0o755)

    def build_trust(self) -> None:
        """The trust store of docs/policy.md's example, with one CA of the company. `company`: its PEM."""
        company = ca("Company CA")
        self.write("/etc/ssl/certs/ca-certificates.crt", bundle(*roots()).decode())
        company.at(self.path("/etc/reassert/trust.d/company.pem"))
        self.company = company.pem.decode()
        self.run(PROGRAM, "trust", "build")

    def start_agent(self) -> None:
        """Start the agent; there must be a policy."""
        self._start("agent", "--socket", AGENT, *OPTIONS)
        for _ in range(30000):
            if self.path(AGENT).exists():
                return
            assert self._processes[-1].poll() is None, (self.directory / "agent.output").read_text()
            time.sleep(0.02)
        raise AssertionError("the agent never listened")
