"""Install and uninstall on booted nodes: a node with company CAs, three handlers and a policy, and the commands."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.tools import cleaned

from e2e.cri.client import Pod
from e2e.cri.hostile import ENV, OVERRIDDEN, RESERVED, reserved_in
from e2e.cri.images import write_images
from e2e.node.booted import BootedNode
from e2e.node.engines import CONFIG, CRUN, FORMATS, RUNC, Handler, containerd_config
from e2e.node.files import Snapshot, differences

PROGRAM = "/src/reassert/dist/reassert/reassert"
"""The frozen program on a booted node, before it is installed."""

PACKAGED = "/usr/lib/reassert/reassert"
"""Where `package` puts it, as a package would."""

POLICY_FILE = "/etc/reassert/policy.yaml"
POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {namespaces: [kube-system]}
  rules:
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    mounts:
    - {hostPath: /etc/company-ca, mountPath: /etc/ssl, readOnly: true}
  - {name: gpu, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}
"""
"""Nothing in it has to be absent, so that NRI can enforce it too."""

NVIDIA = Handler("nvidia", 'BinaryName = "/usr/local/bin/nvidia-container-runtime"', "GPU nodes: NVIDIA's wrapper")
NOT_WIRED = 3
"""Exit status of `status`."""

KATA = Handler("kata", 'ConfigPath = "/opt/kata/configuration.toml"', "sandboxed pods", type="io.containerd.kata.v2")
HANDLERS = (RUNC, CRUN, NVIDIA, KATA)

FILES = {
    "/etc/company-ca/company.crt": "company\n",
    POLICY_FILE: POLICY,
    "/usr/local/bin/nvidia-container-runtime": (
        '#!/bin/sh\n# a wrapper like NVIDIA\'s\necho "$@" >> /run/nvidia.log\nexec runc "$@"\n'
    ),
}


COMPANY = {
    "/etc/reassert/policy.yaml": """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    mounts:
    - {hostPath: /etc/company, mountPath: /etc/ssl}
""",
    "/etc/company/company.crt": "company\n",
}
"""Files of a node of docker or podman: a policy, and what it reserves."""

DAEMON = {
    "/etc/docker/daemon.json": json.dumps(
        {"bridge": "none", "iptables": False, "ip-forward": False, "storage-driver": "vfs"}
    )
}
"""The file of a dockerd that changes nothing of the network."""


def usual_config(suite: str) -> str:
    """A config.toml with all of HANDLERS."""
    return containerd_config(FORMATS[suite], HANDLERS)


def package(node: BootedNode) -> None:
    """Have the program where a package has it. There it stays, so a change need not put it in place, and is faster."""
    node.run("cp", "-rT", str(Path(PROGRAM).parent), str(Path(PACKAGED).parent))


def with_program_and_images(node: BootedNode, *engines: str) -> BootedNode:
    """The node, after `package`, with the images of the tests in docker or podman."""
    package(node)
    for archive in write_images(node.directory):
        for engine in engines:
            node.run(engine, "load", "--input", str(archive))
    return node


@dataclass
class Wirable:
    """A booted node whose files were all as `before` when its test began.

    `program`: the one that is called. `options`: of every install.
    """

    booted: BootedNode
    before: Snapshot
    program: str = PROGRAM
    options: tuple[str, ...] = ()

    def node(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command with these arguments. No command ever shows a traceback."""
        done = self.booted.run(self.program, *arguments, check=False)
        said = f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, said
        assert not check or done.returncode == 0, said
        return done

    def take_out(self) -> None:
        """After a test: uninstall, if anything is installed. An engine that does not answer is asked again."""
        if self.booted.path("/var/lib/reassert").exists() and not cleaned("the wiring", lambda: self.node("uninstall")):
            self.node("uninstall")

    def install(self, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`install` for containerd. kata is accepted: it cannot be wired."""
        accepted = ("--except", "handler/kata")
        return self.node("install", "--engine", "containerd", *accepted, *self.options, *options, check=check)

    def verified(self) -> dict[str, str]:
        """What `verify` says of each handler."""
        return {name: handler["result"] for name, handler in self.verify().items()}

    def verify(self) -> dict[str, dict[str, Any]]:
        """All that `verify` says of each handler."""
        done = self.node("verify", "--engine", "containerd", "-o", "json", check=False)
        found: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == found["protected"]
        return {handler["name"]: handler for handler in found["handlers"]}

    def status(self) -> tuple[int, dict[str, list[str]], list[str]]:
        """Exit status, wired adapters by handler, problems."""
        done = self.node("status", "--engine", "containerd", "-o", "json", check=False)
        found = json.loads(done.stdout)
        assert found["exitStatus"] == done.returncode
        handlers = found["engines"].get("containerd", {"handlers": []})["handlers"]
        return done.returncode, {handler["name"]: handler["wired"] for handler in handlers}, found["problems"]

    def json(self, *arguments: str) -> dict[str, Any]:
        """What a command says of containerd as JSON."""
        done = self.node(*arguments, "--engine", "containerd", "-o", "json", check=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def hints(self) -> list[str]:
        """What `status` says that is neither an error nor a warning."""
        found: list[str] = self.json("status")["hints"]
        return found

    def events(self) -> list[dict[str, Any]]:
        """The event log."""
        return [
            json.loads(line) for line in self.booted.path("/var/log/reassert/events.jsonl").read_text().splitlines()
        ]

    def config(self, text: str | None = None) -> str:
        """config.toml; with a text, changed to it."""
        path = self.booted.path(CONFIG)
        if text is not None:
            path.write_text(text)
        return path.read_text()

    def dump(self) -> str:
        """The configuration as containerd understands it."""
        return self.booted.run("containerd", "config", "dump").stdout

    def pid(self) -> str:
        """The process id of the running containerd: another one after a restart."""
        return self.booted.property("containerd", "MainPID")

    def changes(self) -> list[str]:
        """What is different from before the test."""
        return differences(self.before, self.booted.snapshot())

    def is_untouched(self) -> None:
        """Fails if anything is different from before the test, or containerd does not run."""
        assert self.changes() == [], "\n".join(self.changes())
        assert self.status()[0] == NOT_WIRED
        assert self.booted.property("containerd", "ActiveState") == "active"

    def reconfigure(self, text: str) -> None:
        """Another config.toml, which the running containerd has read."""
        self.config(text)
        self.booted.run("systemctl", "restart", "containerd")
        self.booted.wait_for_cri()
        self.before = self.booted.snapshot()

    def refuses(self, *options: str) -> str:
        """Install fails, and nothing has changed. Returns the error."""
        done = self.install(*options, check=False)
        assert done.returncode == 1, done.stdout
        assert done.stderr.startswith("reassert: "), done.stderr
        assert self.changes() == [], "\n".join(self.changes())
        return done.stderr

    def pod_gets(self, handler: str, overridden: bool = False) -> None:
        """Start a hostile pod and see what it gets (`assert_put_back`)."""
        pod = self.hostile_pod(handler)
        assert_put_back(pod, overridden)
        pod.remove()

    def hostile_pod(self, handler: str) -> Pod:
        """A pod with one container that overrides what the policy reserves, running."""
        self.booted.wait_for_cri()
        return self.booted.cri.run_pod(handler)


def assert_put_back(pod: Pod, overridden: bool = False, name: str = "c") -> None:
    """Run a hostile container in the pod: its process and an exec'ed one have what the node wants, or the author."""
    container = pod.run(name=name, env=ENV, mounts=[("/tmp", "/etc/ssl")])
    wanted = OVERRIDDEN if overridden else {**OVERRIDDEN, **RESERVED}
    assert reserved_in(container.environ()) == wanted
    assert reserved_in(container.exec_environ()) == wanted
    assert ("company.crt" in container.exec("/bin/ls", "/etc/ssl")) != overridden


def audited(node: BootedNode, program: str = PACKAGED) -> dict[str, tuple[str, str]]:
    """Engine and state of every running container by its name, as `audit` says it."""
    done = node.run(program, "audit", "-o", "json", check=False)
    return {each["title"]: (each["engine"], each["state"]) for each in json.loads(done.stdout)["containers"]}


@contextmanager
def without_package(node: Wirable) -> Iterator[Wirable]:
    """The node without `package`: install copies the program. A node has one of the two."""
    there = os.path.dirname(PACKAGED)
    node.booted.run("mv", there, f"{there}.away")
    wirable = Wirable(node.booted, node.before)
    try:
        yield wirable
        wirable.take_out()
    finally:
        node.booted.run("mv", f"{there}.away", there)
