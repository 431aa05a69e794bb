"""What CPython is profiled with (python.sh): the agent's creations and execs, then some of Python's own tests.

    python profile.py SOURCE COUNT TEST…

SOURCE: the directory with the package `hook`. No other package is needed, so the policy is made here.
"""

import json
import os
import runpy
import socket
import sys
import tempfile

source, count, *tests = sys.argv[1:]
sys.path.insert(0, source)

from hook import __version__  # noqa: E402  # after the path is set
from hook.agent import work  # noqa: E402  # likewise
from hook.agent.clients import Client  # noqa: E402  # likewise
from hook.agent.memory import Memory  # noqa: E402  # likewise
from hook.compile.compiler import rule_to_line  # noqa: E402  # likewise
from hook.core.base.jsontext import encode  # noqa: E402  # likewise
from hook.core.policy.entries import Mount  # noqa: E402  # likewise
from hook.core.policy.model import Policy, Rule  # noqa: E402  # likewise
from hook.core.policy.sources import Value  # noqa: E402  # likewise
from hook.core.policy.store import NO_RULES  # noqa: E402  # likewise
from hook.entry import protocol  # noqa: E402  # likewise

CRI = "io.kubernetes.cri."
NAMES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "NVIDIA_VISIBLE_DEVICES")
ENV = [f"WEB_{number}_SERVICE_PORT=tcp://10.0.0.{number % 250}:80" for number in range(600)] + [f"{NAMES[0]}=/tmp/evil"]
PROCESS = {"args": ["sh"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ENV}
TYPES = ("proc", "tmpfs", "devpts", "sysfs", "mqueue", "bind")
MOUNTS = [
    {"destination": f"/m{number}", "type": TYPES[number % 6], "source": f"/src/{number}", "options": ["rw", "nosuid"]}
    for number in range(12)
]
CONFIG = {
    "ociVersion": "1.0.2",
    "process": PROCESS,
    "root": {"path": "rootfs"},
    "hostname": "web",
    "mounts": MOUNTS,
    "annotations": {
        CRI + "container-type": "container",
        CRI + "container-name": "web",
        CRI + "image-name": "docker.io/library/nginx:1",
        CRI + "sandbox-namespace": "shop",
        CRI + "sandbox-name": "web-1",
        CRI + "sandbox-uid": "5d5e2ad8",
    },
    "linux": {
        "cgroupsPath": "kubepods.slice:cri-containerd:0a",
        "namespaces": [{"type": "pid"}, {"type": "mount"}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": ["/proc/kcore"],
        "readonlyPaths": ["/proc/sys"],
    },
}
HEADER = {**NO_RULES, "sha256": "0" * 64, "excludedNamespaces": [], "patterns": {"*": [0]}}


class Front:
    """What front sends, without front. `directory`: of the policy, the store and one container."""

    def __init__(self, directory: str) -> None:
        self.bundle, self.state = f"{directory}/k8s.io/0a", f"{directory}/runc"
        os.makedirs(self.bundle)
        os.makedirs(f"{self.state}/0a")
        write(f"{self.state}/0a/state.json", {"config": {"labels": [f"bundle={self.bundle}"]}})
        env = [Value(name, "/etc/ssl/certs/ca.crt") for name in NAMES]
        mounts = [Mount(directory, "/etc/ssl", ["rbind", "ro", "nosuid", "nodev"], [], False)]
        line = encode(rule_to_line(Rule("ca", {}, False, env, mounts, False, {}, [], False)))
        self.where = [f"{directory}/policy.yaml", f"{directory}/store", f"{directory}/events.jsonl"]
        self.memory = Memory(*self.where)
        policy = Policy(self.where[0], HEADER, [line])
        self.memory.policy = lambda: policy  # type: ignore[method-assign]  # a compiler needs packages to read a file

    def ask(self, *arguments: str) -> None:
        """One request, whose answer has to be that the real runtime starts with the same arguments."""
        parts = [protocol.REQUEST.decode(), __version__, protocol.RUNTIME, "/bin/true", *self.where, "/hook"]
        frame = "".join(f"{part}\0" for part in (*parts, "", "--root", self.state, *arguments)).encode()
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = os.open(self.bundle, os.O_PATH)
        answer = work.answer(self.memory, protocol.Request(frame), Client(ends[0], os.getpid(), 0o022), given)
        if answer != protocol.go():
            raise SystemExit(f"profile.py: {answer!r}")
        for end in ends:
            end.close()
        os.close(given)
        os.chdir("/")

    def start(self) -> None:
        """One creation and one exec."""
        log = f"{self.bundle}/log.json"
        write(f"{self.bundle}/config.json", CONFIG)
        self.ask(
            "--log", log, "--log-format", "json", "create", "--bundle", self.bundle, "--pid-file", f"{log}.pid", "0a"
        )
        write(f"{self.bundle}/process.json", PROCESS)
        self.ask("--log", log, "--log-format", "json", "exec", "--process", f"{self.bundle}/process.json", "0a")


def write(path: str, value: object) -> None:
    """Write a file of JSON."""
    with open(path, "w") as file:
        json.dump(value, file, separators=(",", ":"))  # as Go writes it


with tempfile.TemporaryDirectory(dir="/run") as directory:
    front = Front(directory)
    for _ in range(int(count)):
        front.start()
sys.path.remove(source)
if tests:
    sys.argv = ["test", "--pgo", *tests]
    runpy.run_module("test", run_name="__main__", alter_sys=True)
