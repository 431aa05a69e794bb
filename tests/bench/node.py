"""What is measured: nodes with a policy each, bundles, and the contenders. All of it is on a tmpfs."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.bundle import Bundle, as_engines_write, make_image
from harness.node import Node, write_program
from harness.paths import REASSERT

from bench.measure import ENVIRONMENT
from hook.node.services import ask

NAMESPACE = "shop"
VALUE = "/etc/ssl/certs/ca-certificates.crt"
DEVICE = "example.com/gpu=0"

POLICY = "apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {name: bench}\nspec:\n  rules:\n"
RULE = """\
  - name: ca-{number}
    match: {{namespaces: ["{namespace}"]{more}}}
    env:
    - {{name: REQUESTS_CA_BUNDLE, value: {value}}}
    - {{name: PYTHONHTTPSVERIFY, absent: true}}
    mounts:
    - {{hostPath: CA, mountPath: /etc/ssl, readOnly: true}}
"""


@dataclass(frozen=True)
class Contender:
    """A program that is called with runc's arguments."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)


class MeasuredNode(Node):
    """A node of a frozen `program`, which is called `name` in the results."""

    def __init__(self, directory: Path, policy: str, name: str, program: str) -> None:
        super().__init__(directory, policy)
        self.name, self.program = name, program
        self._agent: subprocess.Popen[bytes] | None = None
        command = [program, "policy", "compile", *self.options()[:4]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def cold(self, real: str) -> Contender:
        """The program's dispatcher in front of a runtime."""
        return Contender(self.name, (self._script(f"cold-{Path(real).name}", "--real", real),))

    def warm(self, real: str) -> Contender:
        """The same with the agent, which is started for it and ends with the run."""
        where = ["--real", real, "--socket", self.agent(), "--hook-file", self.warm_hook()]
        return Contender(f"{self.name}, warm", (self._script(f"warm-{Path(real).name}", *where),))

    def warm_hook(self) -> str:
        """What hook entries call where there is an agent."""
        return self._script("warm-hook", "--hook", "--socket", self.agent())

    def _script(self, file: str, *arguments: str) -> str:
        command = [self.program, "dispatcher", *arguments, *self.options()]
        made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return write_program(self.directory / f"{self.name}-{file}", made)

    def agent(self) -> str:
        """The agent's socket."""
        path = self.directory / "agent/agent.sock"
        if self._agent:
            return str(path)
        command = [self.program, "agent", "--socket", str(path), *self.options()]
        self._agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        atexit.register(self._agent.kill)
        while not path.exists():
            if self._agent.poll() is not None:
                raise SystemExit(f"the agent of {self.name} did not start")
            time.sleep(0.02)
        return str(path)

    def answered(self) -> Counter[str]:
        """How many requests the agent has answered: warm, and cold by reason."""
        status = ask(self.agent())
        return Counter({"warm": sum(status["warm"].values()), **status["cold"]})

    def agent_cpu(self) -> float:
        """Milliseconds of CPU time that the agent has taken."""
        if not self._agent:
            return 0.0
        fields = Path(f"/proc/{self._agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


class Setup:
    """All nodes and bundles of a run below `top`. `others`: programs beside the one under test, by name."""

    def __init__(self, top: Path, runc: str, others: Mapping[str, str]) -> None:
        self.top = top
        self.runc = runc
        self.root = str(top / "state")
        self.rootfs = top / "rootfs"
        make_image(self.rootfs)
        self._programs = {"reassert": str(REASSERT), **others}
        self._nodes: dict[str, MeasuredNode] = {}

    def nodes(self, rules: int) -> list[MeasuredNode]:
        """A node of each program, ours first, with a policy of so many rules."""
        return [self.node(rules, name=name) for name in self._programs]

    def node(self, rules: int, more: str = "", name: str = "reassert") -> MeasuredNode:
        """A node whose policy has one rule for the containers here, and others. `more`: conditions of each rule."""
        directory = f"{name}-{rules}{'-more' if more else ''}"
        if directory not in self._nodes:
            text = POLICY
            for number, namespace in enumerate([NAMESPACE, *(f"team-{number}" for number in range(1, rules))]):
                text += RULE.format(number=number, namespace=namespace, value=VALUE, more=more)
            (self.top / directory).mkdir()
            self._nodes[directory] = MeasuredNode(self.top / directory, text, name, self._programs[name])
        return self._nodes[directory]

    def agents_cpu(self) -> float:
        """Milliseconds of CPU time that the agents have taken."""
        return sum(node.agent_cpu() for node in self._nodes.values())

    def peer(self, name: str, path: str, real: str) -> Contender:
        """Another project's wrapper, by the name under which its calling convention is known here."""
        if name != "nvidia":
            raise SystemExit(f"--peer {name}: only nvidia is known")
        home = self.top / f"nvidia-{Path(real).name}"
        self._nvidia_config(home, real)
        return Contender(name, (path,), {**ENVIRONMENT, "XDG_CONFIG_HOME": str(home)})

    def _nvidia_config(self, home: Path, real: str) -> None:
        """CDI, with a device that brings one env and one mount: what our policy does, done its way."""
        specs = home / "cdi"
        specs.mkdir(parents=True, exist_ok=True)
        mount = {"hostPath": str(self.node(1).ca), "containerPath": "/etc/ssl", "options": ["ro", "rbind", "rprivate"]}
        edits = {"env": [f"REQUESTS_CA_BUNDLE={VALUE}"], "mounts": [mount]}
        kind, _, device = DEVICE.partition("=")
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]}
        (specs / "gpu.json").write_text(json.dumps(spec))
        config = home / "nvidia-container-runtime" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            f'[nvidia-container-runtime]\nruntimes = ["{real}"]\nmode = "cdi"\n'
            f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{specs}"]\n'
        )

    def bundle(self, name: str, size: int, args: list[str] | None = None, device: bool = False) -> Bundle:
        """A pod's container with a config.json of about so many bytes, which overrides what the policy reserves."""
        path = self.top / "k8s.io" / name.replace(" ", "-")  # as containerd names it (hook.core.container.identity)
        bundle = Bundle(path, args or ["/bin/true"], self.rootfs)
        bundle.pod(NAMESPACE, "app-1", "app")
        env = bundle.spec["process"]["env"]
        env += ["REQUESTS_CA_BUNDLE=/tmp/theirs", "PYTHONHTTPSVERIFY=0"]
        if device:
            env.append(f"NVIDIA_VISIBLE_DEVICES={DEVICE}")
        number = 0
        length = len(as_engines_write(bundle.spec))
        while length < size:  # as kubelet does for every service of a namespace
            entry = f"SERVICE_{number}_PORT_443_TCP_ADDR=10.0.{number // 256 % 256}.{number % 256}"
            env.append(entry)
            length += len(entry) + 3
            number += 1
        bundle.save()
        return bundle


def add_hook(bundle: Bundle, *command: str) -> None:
    """Give a bundle a prestart hook."""
    entry = {"path": command[0], "args": list(command), "env": ["PATH=/bin"], "timeout": 10}
    bundle.spec["hooks"] = {"prestart": [entry]}


def correct(bundle: Bundle, node: MeasuredNode) -> None:
    """Correct a bundle by the node's policy, as the hook gets it behind the wrapper."""
    env = bundle.spec["process"]["env"]
    kept = [entry for entry in env if not entry.startswith(("REQUESTS_", "PYTHONHTTPS"))]
    bundle.spec["process"]["env"] = [*kept, f"REQUESTS_CA_BUNDLE={VALUE}"]
    bundle.bind(node.ca, "/etc/ssl", "rprivate", "ro")
