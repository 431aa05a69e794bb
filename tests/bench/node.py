"""The node of the benchmarks, on a tmpfs: policies, bundles, and the contenders."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import ENVIRONMENT
from hook.node.services import ask

TOP = Path(__file__).resolve().parents[2]
REASSERT = Path(os.environ.get("REASSERT", TOP / "dist/reassert/reassert"))
BUSYBOX = "/bin/busybox"
NAMESPACE = "shop"
UID = "11111111-2222-3333-4444-555555555555"
VALUE = "/etc/ssl/certs/ca-certificates.crt"
DEVICE = "example.com/gpu=0"

RULE = """\
  - name: ca-{number}
    match: {{namespaces: ["{namespace}"]{more}}}
    env:
    - {{name: REQUESTS_CA_BUNDLE, value: {value}}}
    - {{name: PYTHONHTTPSVERIFY, absent: true}}
    mounts:
    - {{hostPath: {ca}, mountPath: /etc/ssl, readOnly: true}}
"""


@dataclass(frozen=True)
class Contender:
    """A program that is called with runc's arguments."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)


class Node:
    """Directories below `top`, which only root may write (the ownership rules of a policy ask for that)."""

    def __init__(self, top: Path, runc: str) -> None:
        self.top = top
        self.runc = runc
        self.root = str(top / "state")
        self._agents: list[int] = []
        self.ca = top / "ca"
        (self.ca / "certs").mkdir(parents=True)
        (self.ca / "certs" / "company.crt").write_text("company\n")
        self.rootfs = top / "rootfs"
        for name in ("bin", "etc/ssl/certs", "proc", "sys", "dev", "tmp"):
            (self.rootfs / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, self.rootfs / "bin/busybox")
        for applet in ("sh", "sleep", "true"):
            (self.rootfs / "bin" / applet).symlink_to("busybox")
        subprocess.run([runc, "spec", "--bundle", str(top)], check=True)
        self._spec: dict[str, Any] = json.loads((top / "config.json").read_text())

    def policy(self, rules: int, more: str = "") -> Path:
        """A compiled policy of so many rules, of which one is for the containers here. `more`: conditions of each."""
        path = self.top / f"policy-{rules}{'-more' if more else ''}" / "policy.yaml"
        if path.exists():
            return path
        path.parent.mkdir()
        others = [f"team-{number}" for number in range(1, rules)]
        text = "apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {name: bench}\nspec:\n  rules:\n"
        for number, namespace in enumerate([NAMESPACE, *others]):
            text += RULE.format(number=number, namespace=namespace, value=VALUE, ca=self.ca, more=more)
        path.write_text(text)
        self.compile(path)
        return path

    def compile(self, policy: Path) -> list[str]:
        """The command that compiles a policy, run once."""
        command = [str(REASSERT), "policy", "compile", *self.options(policy)[:4]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return command

    def options(self, policy: Path, store: str = "store") -> list[str]:
        """What every adapter is told about this node."""
        where = policy.parent
        return ["--policy", str(policy), "--store", str(where / store), "--events", str(where / "events.jsonl")]

    def dispatcher(self, policy: Path, real: str = "", program: str = "", name: str = "reassert") -> Contender:
        """`reassert-runc` in front of the real runtime, made by the frozen program, or by another one."""
        real = real or self.runc
        return Contender(name, (self._script(policy, program, name, Path(real).name, "--real", real),))

    def warm(self, policy: Path, real: str = "", program: str = "", name: str = "reassert") -> Contender:
        """The same with that program's resident agent, which is started for the policy and ends with the run."""
        real, socket = real or self.runc, self._agent(policy, program, name)
        where = ["--real", real, "--socket", socket, "--hook-file", self.warm_hook(policy, program, name)]
        return Contender(f"{name}, warm", (self._script(policy, program, name, f"warm-{Path(real).name}", *where),))

    def warm_hook(self, policy: Path, program: str = "", name: str = "reassert") -> str:
        """What hook entries call where there is an agent."""
        where = ["--hook", "--socket", self._agent(policy, program, name)]
        return self._script(policy, program, name, "warm-hook", *where)

    def _script(self, policy: Path, program: str, name: str, file: str, *arguments: str) -> str:
        """What `dispatcher` of a program writes."""
        path = policy.parent / f"{name}-{file}"
        command = [program or str(REASSERT), "dispatcher", *arguments, *self.where(policy, program, name)]
        path.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        path.chmod(0o755)
        return str(path)

    def where(self, policy: Path, program: str, name: str) -> list[str]:
        """`options`, with a store of its own for another program."""
        return self.options(policy, f"store-{name}" if program else "store")

    def _agent(self, policy: Path, program: str, name: str) -> str:
        path = policy.parent / f"agent-{name}" / "agent.sock"
        if path.exists():
            return str(path)
        command = [program or str(REASSERT), "agent", "--socket", str(path), *self.where(policy, program, name)]
        agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        atexit.register(agent.kill)
        self._agents.append(agent.pid)
        while not path.exists():
            if agent.poll() is not None:
                raise SystemExit(f"the agent of {name} did not start")
            time.sleep(0.02)
        return str(path)

    def answered(self, policy: Path) -> Counter[str]:
        """How many requests the agent of a policy has answered: warm, and cold by reason."""
        status = ask(self._agent(policy, "", "reassert"))
        return Counter({"warm": sum(status["warm"].values()), **status["cold"]})

    def agents_cpu(self) -> float:
        """Milliseconds of CPU time that the agents have taken."""
        ticks = 0
        for pid in self._agents:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks * 1e3 / os.sysconf("SC_CLK_TCK")

    def peer(self, name: str, path: str, real: str = "") -> Contender:
        """Another project's wrapper, by the name under which its calling convention is known here."""
        if name != "nvidia":
            raise SystemExit(f"--peer {name}: only nvidia is known")
        real = real or self.runc
        home = self.top / f"nvidia-{Path(real).name}"
        self._nvidia_config(home, real)
        return Contender(name, (path,), {**ENVIRONMENT, "XDG_CONFIG_HOME": str(home)})

    def _nvidia_config(self, home: Path, real: str) -> None:
        """CDI, with a device that brings one env and one mount: what our policy does, done its way."""
        specs = home / "cdi"
        specs.mkdir(parents=True, exist_ok=True)
        mount = {"hostPath": str(self.ca), "containerPath": "/etc/ssl", "options": ["ro", "rbind", "rprivate"]}
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
        spec = json.loads(json.dumps(self._spec))
        spec["root"] = {"path": str(self.rootfs), "readonly": False}
        process = spec["process"]
        process.update(terminal=False, args=args or ["/bin/true"])
        process["env"] = ["PATH=/bin", "REQUESTS_CA_BUNDLE=/tmp/theirs", "PYTHONHTTPSVERIFY=0"]
        if device:
            process["env"].append(f"NVIDIA_VISIBLE_DEVICES={DEVICE}")
        process.pop("rlimits", None)
        spec["annotations"] = {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": "app",
            "io.kubernetes.cri.image-name": "registry.example/app:1",
            "io.kubernetes.cri.sandbox-id": "0" * 64,
            "io.kubernetes.cri.sandbox-name": "app-1",
            "io.kubernetes.cri.sandbox-namespace": NAMESPACE,
            "io.kubernetes.cri.sandbox-uid": UID,
        }
        number = 0
        length = len(as_engines_write(spec))
        while length < size:  # as kubelet does for every service of a namespace
            entry = f"SERVICE_{number}_PORT_443_TCP_ADDR=10.0.{number // 256 % 256}.{number % 256}"
            process["env"].append(entry)
            length += len(entry) + 3
            number += 1
        # As containerd names it (hook.core.container.identity).
        return Bundle(self.top / "k8s.io" / name, as_engines_write(spec))


def as_engines_write(value: object) -> bytes:
    """JSON without white space, as Go's encoding/json writes it for containerd, dockerd and podman."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Bundle:
    """An OCI bundle whose config.json is put back as the engine wrote it before each use."""

    def __init__(self, directory: Path, content: bytes) -> None:
        directory.mkdir(parents=True)
        self.directory = str(directory)
        self._config = directory / "config.json"
        self.content = content
        self.fresh()

    def fresh(self) -> None:
        """The engine's config.json again."""
        self._config.write_bytes(self.content)

    def with_hook(self, *command: str) -> None:
        """The same with a prestart hook."""
        spec = json.loads(self.content)
        entry = {"path": command[0], "args": list(command), "env": ["PATH=/bin"], "timeout": 10}
        spec["hooks"] = {"prestart": [entry]}
        self.content = as_engines_write(spec)
        self.fresh()

    def corrected(self) -> None:
        """The same after a correction, as the hook gets it behind the wrapper."""
        spec = json.loads(self.content)
        env = [entry for entry in spec["process"]["env"] if not entry.startswith(("REQUESTS_", "PYTHONHTTPS"))]
        spec["process"]["env"] = [*env, f"REQUESTS_CA_BUNDLE={VALUE}"]
        self.content = as_engines_write(spec)
        self.fresh()

    def mount(self, source: Path, destination: str) -> None:
        """The same with the reserved mount in it."""
        spec = json.loads(self.content)
        options = ["rbind", "rprivate", "ro"]
        spec["mounts"].append({"destination": destination, "type": "bind", "source": str(source), "options": options})
        self.content = as_engines_write(spec)
        self.fresh()
