"""Measure the response time and memory of `reassert nri`. This program is the runtime, on a socket pair.

    python tests/bench/nri.py [--requests 10000] [--reassert dist/reassert/reassert] [--beside GO_PLUGIN] [--busy RATE]

A plugin given with --beside is started as from a runtime's plugin directory, and measured in turns with reassert. Every
container lacks the reserved mount, and every second one overrides reserved env: each is adjusted and has an event.

Measured are `reassert nri` and, with --busy, the plugin in `reassert agent --nri`, while so many containers a second
are created by front through the other socket of that agent, before a runtime that does nothing, while the others are
measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP), str(TOP / "tests")]

from unit.nri.support import REQUEST, Peer, encoded  # noqa: E402  # likewise

from hook.node.services import ask  # noqa: E402  # likewise
from hook.nri import ttrpc  # noqa: E402  # after the path is set
from hook.nri.ttrpc import RUNTIME, frames  # noqa: E402  # likewise

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
POLICY = {
    "apiVersion": "reassert/v1",
    "kind": "NodePolicy",
    "metadata": {"name": "bench"},
    "spec": {
        "exclude": {"namespaces": ["kube-system"]},
        "rules": [
            {
                "name": "company-ca",
                "env": [{"name": "REQUESTS_CA_BUNDLE", "value": CA_BUNDLE}],
                "mounts": [{"hostPath": "/etc/ssl", "mountPath": "/etc/ssl", "readOnly": True}],
            },
            {
                "name": "gpu",
                "match": {"podSelector": {"matchLabels": {"app": "web"}}},
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            },
        ],
    },
}
RUNTIMES = ("/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup")
"""Mounts that are the same in every container."""

PODS = (
    *("/etc/hosts", "/dev/termination-log", "/etc/hostname", "/etc/resolv.conf", "/dev/shm", "/data"),
    "/var/run/secrets/kubernetes.io/serviceaccount",
)
"""Mounts whose source is another one for each pod."""


def request(number: int) -> Any:
    """A container as containerd describes it, about 3 kB."""
    override = number % 2
    pod = {
        "id": f"{number:064x}",
        "name": f"web-{number}",
        "uid": f"00000000-0000-0000-0000-{number:012d}",
        "namespace": "team-a",
        "labels": {"app": "web", "io.cri-containerd.kind": "sandbox"},
        "annotations": {f"io.kubernetes.cri.{key}": "x" * 32 for key in ("sandbox-id", "sandbox-name", "sandbox-uid")},
    }
    env = [f"WEB_SERVICE_PORT_{at}=tcp://10.0.0.1:80{at}" for at in range(25)]
    env += ["REQUESTS_CA_BUNDLE=" + ("/tmp/evil" if override else CA_BUNDLE)]
    env += ["NVIDIA_VISIBLE_DEVICES=" + ("all" if override else "void")]
    places = [(path, f"/var/lib/kubelet{path}") for path in RUNTIMES]
    places += [(path, f"/var/lib/kubelet/pods/{pod['uid']}{path}") for path in PODS]
    bind = {"type": "bind", "options": ["rbind", "rprivate", "rw"]}
    mounts = encoded("Mount", [{"destination": at, "source": source, **bind} for at, source in places])
    container = {
        "id": f"{number:064x}",
        "pod_sandbox_id": pod["id"],
        "name": "app",
        "env": env,
        "mounts": mounts,
        "annotations": {"io.kubernetes.cri.image-name": "registry.example/app:1"},
    }
    return REQUEST(pod=pod, container=container)


class Runtime(Peer):
    """The runtime's side of a plugin that it has started."""

    def __init__(self, command: list[str], path: str = "") -> None:
        """`path`: where the plugin connects to; "" for one that is given its connection."""
        if path:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                super().__init__(listener.accept()[0])
        else:
            super().__init__(self._launch(command))
        stream, message = self.receive()
        while stream != RUNTIME:  # whatever else a plugin says before RegisterPlugin is not for us
            stream, message = self.receive()
        self.socket.sendall(frames(RUNTIME, struct.pack(">IIBB", 0, message.stream, 2, 0)))
        self.call("Configure", ttrpc.get("ConfigureRequest")(runtime_name="containerd", runtime_version="2.1.9"))
        self.call("Synchronize", ttrpc.get("SynchronizeRequest")())

    def _launch(self, command: list[str]) -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = {"PATH": os.defpath, "NRI_PLUGIN_NAME": "bench", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}

        def third() -> None:
            os.dup2(theirs.fileno(), 3)

        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=third,  # noqa: PLW1509  # there is one thread
            pass_fds=(3,),
        )
        theirs.close()
        return ours

    def measure(self, requests: list[Any], in_flight: int) -> list[float]:
        """Milliseconds from each request to its answer, with so many on their way at any time."""
        begun: dict[int, float] = {}
        taken: list[float] = []
        waiting = iter(requests)

        def ask() -> None:
            if request := next(waiting, None):
                begun[self.send("CreateContainer", request)] = time.perf_counter()

        for _ in range(in_flight):
            ask()
        while begun:
            stream, response = self.response()
            taken.append((time.perf_counter() - begun.pop(stream)) * 1e3)
            if response.status.code:
                raise SystemExit(f"refused: {response.status.message}")
            ask()
        return taken

    def rss(self) -> float:
        """Resident memory in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu(self) -> float:
        """Milliseconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(10)


class Load:
    """Containers that front creates at a steady rate, before a runtime that does nothing."""

    def __init__(self, reassert: str, directory: Path, where: list[str], rate: float) -> None:
        command = [
            reassert,
            "dispatcher",
            "--real",
            "/bin/true",
            "--socket",
            str(directory / "agent/agent.sock"),
            *where,
        ]
        self._file = directory / "reassert-true"
        self._file.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self._file.chmod(0o755)
        self._bundle = directory / "bundle"
        self._bundle.mkdir()
        self._rate = rate
        self._pid = os.fork()
        if not self._pid:
            try:
                self._run()
            finally:
                os._exit(1)

    def _run(self) -> None:
        env = [f"WEB_SERVICE_PORT_{at}=tcp://10.0.0.1:80{at}" for at in range(600)] + ["REQUESTS_CA_BUNDLE=/tmp/evil"]
        content = json.dumps({"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "r"}, "mounts": []})
        command = [str(self._file), "create", "--bundle", str(self._bundle), "c"]
        due = time.monotonic()
        while os.getppid() != 1:
            (self._bundle / "config.json").write_text(content)
            os.waitpid(os.posix_spawn(command[0], command, {"PATH": os.defpath}), 0)
            due = max(due + 1 / self._rate, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def measure(runtimes: dict[str, Runtime], count: int, rounds: int = 10) -> None:
    """Measure the plugins in turns and print the results."""
    requests = [request(number) for number in range(count // 2 // rounds)]
    for runtime in runtimes.values():
        runtime.measure(requests, 1)
    time.sleep(1)
    idle = {name: runtime.rss() for name, runtime in runtimes.items()}
    for in_flight in (1, 32):
        taken: dict[str, list[float]] = {name: [] for name in runtimes}
        before = {name: runtime.cpu() for name, runtime in runtimes.items()}
        for _ in range(rounds):
            for name, runtime in runtimes.items():
                taken[name] += runtime.measure(requests, in_flight)
        cuts = {name: statistics.quantiles(taken[name], n=100) for name in runtimes}
        for name, runtime in runtimes.items():
            cpu = (runtime.cpu() - before[name]) / len(taken[name])
            print(
                f"{name:10} {in_flight:3} in flight   p50 {cuts[name][49]:7.3f} ms   p99 {cuts[name][98]:7.3f} ms  "
                f" max {max(taken[name]):7.3f} ms   CPU {cpu:6.3f} ms"
            )
    for name, runtime in runtimes.items():
        print(f"{name:10} RSS idle {idle[name]:5.1f} MB, after {count} requests {runtime.rss():5.1f} MB")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--reassert", default=str(TOP / "dist/reassert/reassert"))
    parser.add_argument("--beside", metavar="PLUGIN", help="another NRI plugin to measure in the same run")
    parser.add_argument("--busy", type=float, default=0.0, metavar="RATE", help="containers a second through the agent")
    options = parser.parse_args()
    os.makedirs("/var/lib/reassert-tests", exist_ok=True)  # not below /tmp: a policy there would be refused
    directory = Path(tempfile.mkdtemp(dir="/var/lib/reassert-tests"))
    (directory / "policy.yaml").write_text(json.dumps(POLICY))
    where = ["--policy", str(directory / "policy.yaml"), "--store", str(directory / "store")]
    where += ["--events", str(directory / "events.jsonl")]
    subprocess.run([options.reassert, "policy", "compile", *where[:4]], check=True, stdout=subprocess.DEVNULL)
    load = None
    runtimes = {"reassert": Runtime([options.reassert, "nri", *where])}
    if options.beside:
        runtimes["beside"] = Runtime([options.beside])
    try:
        if options.busy:
            agent = [
                "agent",
                "--socket",
                str(directory / "agent/agent.sock"),
                "--nri",
                "--nri-socket",
                f"{directory}/nri",
            ]
            runtimes["agent"] = Runtime([options.reassert, *agent, *where], f"{directory}/nri")
            load = Load(options.reassert, directory, where, options.busy)
        measure(runtimes, options.requests)
        if options.busy:
            print(json.dumps(ask(str(directory / "agent/agent.sock"))))
    finally:
        if load:
            load.close()
        for runtime in runtimes.values():
            runtime.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
