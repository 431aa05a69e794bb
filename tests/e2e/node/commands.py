"""docker and podman of a booted node, by their own commands."""

from __future__ import annotations

import json
from dataclasses import dataclass

from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.wired import PACKAGED

ACCEPTED = ("runc", "buildkit", "crun-wasm")
ENV = "--env=REQUESTS_CA_BUNDLE=/tmp/evil"
SHOW = ("sh", "-c", "echo $REQUESTS_CA_BUNDLE; ls /etc/ssl")


def runsc_files(arguments: list[str], **daemon: str) -> dict[str, str]:
    """Files of a node whose docker and podman have gVisor's runsc beside runc. `daemon`: more of daemon.json."""
    runtimes = {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": arguments}}
    settings = {"runtimes": runtimes, "bridge": "none", "iptables": False, "ip-forward": False, **daemon}
    return {
        "/etc/docker/daemon.json": json.dumps(settings, indent=2) + "\n",
        "/usr/local/bin/runsc-here": f'#!/bin/sh\nexec /usr/bin/runsc {" ".join(arguments)} "$@"\n',
        "/etc/containers/containers.conf.d/10.conf": '[engine.runtimes]\nrunsc = ["/usr/local/bin/runsc-here"]\n',
    }


@dataclass
class Engine:
    """docker or podman of the node, by its own command. `runtime`: the option of `run` that names one, "" for none."""

    node: BootedNode
    name: str
    runtime: str = ""

    def __call__(self, *arguments: str, check: bool = True) -> str:
        command = ["docker"] if self.name == "docker" else ["podman", "--cgroup-manager=cgroupfs"]
        done = self.node.run(*command, *arguments, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def run(self, *options: str, command: tuple[str, ...] = SHOW, check: bool = True) -> str:
        """What a container prints that overrides the reserved name."""
        limits = [] if self.name == "docker" else ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]
        network = "--network=none" if self.runtime else "--network=host"
        options = (*limits, *filter(None, [self.runtime]), network, ENV, *options)
        return self("run", *options, "--entrypoint", command[0], HOSTILE, *command[1:], check=check)

    def reassert(self, verb: str, *options: str, check: bool = True) -> str:
        """What a command of reassert prints."""
        done = self.node.run(PACKAGED, verb, "--engine", self.name, *options, check=check, timeout=600)
        return done.stdout + done.stderr

    def install(self, *options: str) -> str:
        """With what is accepted that is not wired: docker's own runc, its BuildKit (test_builds.py), crun-wasm."""
        return self.reassert("install", *options, *(f"--except=handler/{each}" for each in ACCEPTED))
