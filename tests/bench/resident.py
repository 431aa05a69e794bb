"""Measure the memory of `reassert agent --nri` over many requests, of front's kind and of NRI's in turns.

    python tests/bench/resident.py [--requests 100000] [--reassert dist/reassert/reassert]

Requests are sent straight to the sockets: creations, execs, hooks and NRI's. The last line says how much memory it has,
and how much it grew over the last four fifths of the requests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP), str(TOP / "tests")]

from bench.nri import POLICY, Runtime, request  # noqa: E402  # after the path is set
from hook import __version__  # noqa: E402  # likewise
from hook.entry import protocol  # noqa: E402  # likewise

ENV = [f"WEB_SERVICE_PORT_{at}=tcp://10.0.0.1:80{at}" for at in range(600)]
STEPS = 20


class Front:
    """What front sends, without front."""

    def __init__(self, directory: Path, path: str) -> None:
        self._path = path
        self._where = [str(directory / "policy.yaml"), str(directory / "store"), str(directory / "events.jsonl")]
        self._bundle = directory / "bundle"
        self._state = directory / "state"
        (self._state / "c").mkdir(parents=True)
        self._bundle.mkdir()
        labels = {"config": {"labels": [f"bundle={self._bundle}"]}}
        (self._state / "c" / "state.json").write_text(json.dumps(labels))
        self._process = directory / "process.json"
        self.counts = dict.fromkeys("GARC", 0)

    def ask(self, kind: str, given: int, *arguments: str) -> None:
        """One request; its answer is counted by kind."""
        parts = [protocol.REQUEST.decode(), __version__, kind, "/bin/true", *self._where, "", "", *arguments]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self._path)
            socket.send_fds(connection, ["".join(f"{part}\0" for part in parts).encode()], [given])
            answer = connection.recv(protocol.FRAME_LIMIT)[len(protocol.ANSWER) + 1 :][:1].decode()
        self.counts[answer] += 1

    def create(self) -> None:
        """A creation whose config.json has to be corrected."""
        env = [*ENV, "REQUESTS_CA_BUNDLE=/tmp/evil"]
        config = {"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "r"}, "mounts": []}
        (self._bundle / "config.json").write_text(json.dumps(config))
        self._ask_in(self._bundle, "create", "c")

    def exec(self) -> None:
        """An exec with a process file that has to be corrected."""
        self._process.write_text(json.dumps({"args": ["true"], "env": [*ENV, "REQUESTS_CA_BUNDLE=/tmp/evil"]}))
        self._ask_in(self._bundle, "--root", str(self._state), "exec", "--process", str(self._process), "c")

    def _ask_in(self, directory: Path, *arguments: str) -> None:
        here = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self.ask("runtime", here, *arguments)
        finally:
            os.close(here)

    def hook(self) -> None:
        """A hook that refuses: the container has no reserved mount."""
        given = os.memfd_create("stdin")
        try:
            os.write(given, json.dumps({"id": "c", "pid": os.getpid(), "bundle": str(self._bundle)}).encode())
            self.ask("hook", given, "--inject-env", "createRuntime")
        finally:
            os.close(given)


def measure(reassert: str, directory: Path, count: int) -> float:
    """The memory in MB after so many requests; prints how it went."""
    (directory / "policy.yaml").write_text(json.dumps(POLICY))
    where = ["--policy", str(directory / "policy.yaml"), "--store", str(directory / "store")]
    subprocess.run([reassert, "policy", "compile", *where], check=True, stdout=subprocess.DEVNULL)
    path = str(directory / "agent/agent.sock")
    command = [reassert, "agent", "--socket", path, "--nri", "--nri-socket", f"{directory}/nri", *where]
    runtime = Runtime([*command, "--events", str(directory / "events.jsonl")], f"{directory}/nri")
    front = Front(directory, path)
    nri = [request(number) for number in range(50)]
    seen = []
    try:
        for _ in range(STEPS):
            for number in range(max(count // STEPS // 4, 1)):
                front.create()
                front.exec()
                front.hook()
                runtime.measure([nri[number % len(nri)]], 1)
            seen.append(runtime.rss())
            (directory / "events.jsonl").unlink(missing_ok=True)
    finally:
        runtime.close()
    cold = front.counts["C"]
    print(f"MB after each {count // STEPS} requests: {' '.join(f'{value:.1f}' for value in seen)}; cold: {cold}")
    print(
        f"agent with NRI: {seen[-1]:.1f} MB after {count} requests, {seen[-1] - seen[STEPS // 5]:+.1f} MB since a fifth"
    )
    return seen[-1]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--reassert", default=str(TOP / "dist/reassert/reassert"))
    options = parser.parse_args()
    os.makedirs("/var/lib/reassert-tests", exist_ok=True)  # not below /tmp: a policy there would be refused
    directory = Path(tempfile.mkdtemp(dir="/var/lib/reassert-tests"))
    try:
        measure(options.reassert, directory, options.requests)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
