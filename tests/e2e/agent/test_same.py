"""Warm and cold: byte for byte the same config.json, arguments, exit status, stderr, --log and event."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import POLICY
from reality.warm import TIMES
from unit.cri import SANDBOX, Engine
from unit.podresources import PodResources
from unit.podresources import recorded as answered
from unit.support import CONTAINERD, FIXTURES
from unit.support import config as of_pod

from e2e.agent.support import PRINTER, WENT_COLD, Agent, reason_of
from hook.compile.compiler import compile_bytes

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    marks.promise(
        "Warm and cold starts give the same `config.json`, arguments, exit status, stderr, `--log` and event",
        about="Agent",
    ),
]

RECORDED = sorted((FIXTURES / "kubelet").rglob("config.*.json")) + sorted((FIXTURES / "kubelet").glob("*-*.json"))
ALLOCATED = """
  - name: gpu
    env:
    - name: NVIDIA_VISIBLE_DEVICES
      valueFrom: {deviceAllocation: {default: void}}
  - name: rest
    deviceAllocations: {env: true, mounts: true, devices: true}
"""
POLICIES = {
    "plain": POLICY,
    "allocated": POLICY.rstrip() + ALLOCATED,
    "deny": POLICY.rstrip() + "\n    onConflict: Deny\n",
    "audit": POLICY.replace("spec:", "spec:\n  mode: Audit", 1).rstrip() + "\n    onConflict: Deny\n",
    "ignore": POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1),
    "env only": POLICY.split("    mounts:")[0],
    "labels": POLICY.replace(
        "- name: company-ca", "- name: company-ca\n    match: {podSelector: {matchLabels: {tier: web}}}"
    ),
    "tried": POLICY.rstrip()
    + """
  - name: tried
    mode: Audit
    onConflict: Deny
    env: [{name: REQUESTS_CA_BUNDLE, value: /evil}, {name: PROXY, value: company}, {name: PATH, absent: true}]
    mounts: [{hostPath: /usr, mountPath: /etc/ssl, readOnly: false}, {hostPath: /usr, mountPath: /mnt}]
""",
    "allowed values": POLICY.split("    env:")[0]
    + """
    env:
    - {name: REQUESTS_CA_BUNDLE, pattern: "/tmp/*", else: /ca.pem}
    - {name: PYTHONHTTPSVERIFY, oneOf: ["1"], else: Deny}
    - {name: NVIDIA_VISIBLE_DEVICES, oneOf: [none, void], else: void, default: none}
""",
}


class Both:
    """One call at a time, warm and cold, each in the same place on a fresh copy of the same files."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.top = agent.node.directory / "io.containerd.runtime.v2.task" / "k8s.io"
        self.bundle = self.top / "0a"
        self.real = agent.node.directory / "runc"
        self.real.write_text(PRINTER)
        self.real.chmod(0o755)
        file = agent.dispatcher(str(self.real))
        self.warm, self.cold = agent.only_warm(file), agent.only_cold(file)
        hook = agent.hook_file()
        self.warm_hook, self.cold_hook = agent.only_warm(hook), agent.only_cold(hook)

    def policy(self, name: str) -> None:
        checkpoint = FIXTURES / "kubelet" / "k1.36-containerd" / "checkpoint.three-pods.json"
        root = self.agent.node.directory / "kubelet"
        (root / "device-plugins").mkdir(parents=True, exist_ok=True)
        shutil.copy(checkpoint, root / "device-plugins" / "kubelet_internal_checkpoint")
        text = POLICIES[name].replace("spec:", f"spec:\n  kubelet: {{root: {root}}}", 1)
        assert compile_bytes("policy.yaml", self.agent.node.placed(text).encode())  # or the last good one is in force
        self.agent.node.compile(text)

    def result(self, file: str, prepare: Callable[[Path], None], arguments: list[str], **options: Any) -> list[object]:
        shutil.rmtree(self.top, ignore_errors=True)
        self.bundle.mkdir(parents=True)
        self.agent.node.events.unlink(missing_ok=True)
        prepare(self.bundle)
        options = {"cwd": self.bundle, "input": b"", **options}
        done = subprocess.run([file, *arguments], capture_output=True, timeout=600, **options)
        found: list[object] = [done.returncode, done.stdout, TIMES.sub("", done.stderr.decode())]
        for path in sorted(self.top.rglob("*")):
            if path.is_file():
                status = path.stat()
                content = TIMES.sub("", path.read_bytes().decode("utf-8", "surrogateescape"))
                found.append((str(path), content, oct(status.st_mode), status.st_uid, status.st_gid))
        if self.agent.node.events.exists():
            found.append(TIMES.sub("", self.agent.node.events.read_text()))
        return found

    def same(
        self, prepare: Callable[[Path], None], arguments: list[str], hook: bool = False, **options: Any
    ) -> list[object]:
        """Compare; fails for a call that the agent did not answer."""
        warm = self.result(self.warm_hook if hook else self.warm, prepare, arguments, **options)
        cold = self.result(self.cold_hook if hook else self.cold, prepare, arguments, **options)
        assert warm[0] != WENT_COLD, f"went cold: {arguments}; a cold start gives {cold}"
        assert warm == cold
        return warm


@pytest.fixture
def both(agent: Agent) -> Both:
    return Both(agent)


def config(data: bytes) -> Callable[[Path], None]:
    """A bundle with this config.json."""

    def prepare(bundle: Path) -> None:
        (bundle / "config.json").write_bytes(data)
        (bundle / "config.json").chmod(0o640)

    return prepare


@pytest.mark.parametrize("name", POLICIES)
def test_recorded_containers(both: Both, name: str) -> None:
    """Each with two of the policies."""
    both.policy(name)
    changed = 0
    for path in RECORDED[list(POLICIES).index(name) % 4 :: 4]:
        result = both.same(config(path.read_bytes()), ["--log", "log.json", "--log-format", "json", "create", "0a"])
        changed += path.read_text() not in str(result)
    assert changed, "in Audit mode by the hook, which looks and changes nothing"


@marks.claim("pod-selector", "runtime")
def test_pod_labels(both: Both) -> None:
    """The agent asks the engine once for a sandbox. Without a timely answer, the cold start says what becomes of it."""
    both.policy("labels")
    engine = Engine(both.agent.node.store)
    data = config(json.dumps(of_pod(annotations=CONTAINERD, env=["REQUESTS_CA_BUNDLE=/tmp/x"])).encode())
    for tier, corrected in (("web", True), ("db", False)):
        engine.labels = {"tier": tier}
        both.agent.stop()
        both.agent.start()
        for _ in range(2):
            assert _corrected(both.same(data, ["create", "0a"])) == corrected
        assert engine.asked == [SANDBOX] * 3  # once warm, and in each cold start
        engine.asked.clear()
    engine.close()
    both.agent.stop()
    both.agent.start()
    assert _corrected(both.same(data, ["create", "0a"]))  # nobody listens: unknown, which counts as met
    engine.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(engine.socket))
        silent.listen()
        late = both.result(both.warm, data, ["create", "0a"])
        assert (late[0], reason_of(bytes(str(late[2]), "utf-8"))) == (WENT_COLD, "late")
        assert _corrected(both.result(both.cold, data, ["create", "0a"]))


@marks.claim("exclusive-claims", "runtime")
def test_resource_claims(both: Both) -> None:
    """The agent asks kubelet once for a container, a cold start each time. Without an answer, the claim may be its own.

    The pod's claim is another container's. No CDI spec of its device is here, so nothing can be decided without one.
    """
    both.policy("allocated")
    recorded = FIXTURES / "kubelet/k1.36-dra"
    root = both.agent.node.directory / "kubelet"
    shutil.copy(recorded / "dra_manager_state.all", root / "dra_manager_state")
    data = config((recorded / "f-sidecar.main.0.config.json").read_bytes())
    refused = both.same(data, ["create", "0a"])
    assert (refused[0], "no CDI spec" in str(refused[2])) == (1, True)
    with closing(PodResources(root, answered("f-sidecar.main.0"))) as kubelet:
        for _ in range(2):
            assert both.same(data, ["create", "0a"])[0] == 0
        assert kubelet.asked == ["dra/f-sidecar"] * 3


def _corrected(result: list[object]) -> bool:
    """Whether the container would start with the policy's value."""
    assert isinstance(result[3], tuple)
    env: list[str] = json.loads(result[3][1])["process"]["env"]
    return env == ["REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"]


def generated(seed: int) -> bytes:
    """A config.json as nobody sane would write it."""
    pick = random.Random(seed)
    names = ["REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY", "PATH", "É", "A B", ""]
    values = ["", "x", "é", "=", "/etc/ssl/certs/ca-certificates.crt", "a" * 300, "\u202e", "\n", "\0", "\ud800"]
    env = [pick.choice(names) + pick.choice(["=", ""]) + pick.choice(values) for _ in range(pick.randrange(8))]
    mounts = [
        {
            "destination": pick.choice(["/etc/ssl", "/etc/ssl/", "/etc//ssl/certs", "/etc", "/proc", "x", ""]),
            "type": "bind",
        }
        | pick.choice([{}, {"source": "/tmp"}, {"options": ["ro", "rbind"]}, {"options": None}])
        for _ in range(pick.randrange(4))
    ]
    annotations = pick.choice(
        [
            {},
            {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-namespace": "team-a"},
            {"io.kubernetes.cri.sandbox-namespace": "kube-system", "io.kubernetes.cri.sandbox-name": "p"},
            {"reassert/decision": '{"version":1,"env":{"A":"1"},"absent":[]}'},
            {"reassert/decision": "{"},
            {"x": 1},
            None,
        ]
    )
    hooks = pick.choice([{}, {"createRuntime": [{"path": "/x"}]}, {"createRuntime": {}}, None])
    spec: dict[str, Any] = {"ociVersion": "1.0.2", "process": {"env": env, "args": ["x"]}, "mounts": mounts}
    spec |= {"annotations": annotations, "hooks": hooks, "root": {"path": "rootfs"}, "linux": {"z": [1.5, None]}}
    for key in pick.sample(sorted(spec), pick.choice([0, 0, 0, 1, 2])):
        spec[key] = pick.choice([None, 1, [], {}, "x"])
    text = json.dumps(spec, indent=pick.choice([None, 1]), ensure_ascii=pick.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    damage = pick.randrange(12)
    if damage == 0:
        data = data[: pick.randrange(len(data))]
    elif damage == 1:
        at = pick.randrange(len(data))
        data = data[:at] + bytes([pick.randrange(256)]) + data[at + 1 :]
    return data


CREATES = (
    ["create", "0a"],
    ["--log", "log.json", "--log-format=json", "create", "--bundle", ".", "0a"],
    ["--log=file:log.txt", "run", "-b", "../0a", "--detach", "0a"],
    ["restore", "--bundle", "", "0a", "--image-path", "é\n*"],
    ["create", "0a", "--help"],
    ["create"],
)


def test_generated_containers(both: Both) -> None:
    ends = set()
    for turn, name in enumerate(POLICIES):
        both.policy(name)
        for seed in range(turn * 12, turn * 12 + 12):
            umask = 0o137 if seed % 3 else 0o22
            ends.add(both.same(config(generated(seed)), CREATES[seed % len(CREATES)], umask=umask)[0])
    assert ends == {0, 1}


EXECS = (
    ["exec", "0a", "sh"],
    ["exec", "-e", "REQUESTS_CA_BUNDLE=x", "0a", "sh"],
    ["exec", "--env=PYTHONHTTPSVERIFY=0", "-te", "A=1", "0a", "sh", "-e", "REQUESTS_CA_BUNDLE=1"],
    ["exec", "-tePYTHONHTTPSVERIFY=0", "0a", "sh", "\udce9"],
    ["exec", "--process", "process.json", "--detach", "0a"],
    ["exec", "-p", "gone.json", "0a"],
    ["exec", "--process=broken.json", "0a"],
    ["exec", "other", "sh"],
)


DECIDED = {
    "decision": '{"version":1,"policy":"x","env":{"REQUESTS_CA_BUNDLE":"/ca"},"absent":["PYTHON*"]}',
    "allowed": '{"version":1,"policy":"x","env":{},"absent":[],'
    '"allowed":{"REQUESTS_CA_BUNDLE":{"oneOf":["1"],"else":"/ca"},"PYTHONHTTPSVERIFY":{"pattern":"0*","else":"Deny"}}}',
    "none": None,
    "broken": "{",
}


@pytest.mark.parametrize(
    ("record", "decided"),
    [
        ("state.json", "decision"),
        ("status", "decision"),
        ("status", "allowed"),
        ("status", "none"),
        ("status", "broken"),
    ],
)
def test_execs(both: Both, record: str, decided: str) -> None:
    """`record`: runc's of a container, or crun's, which may be below XDG_RUNTIME_DIR."""
    both.policy("plain")

    def prepare(bundle: Path) -> None:
        annotations = {"reassert/decision": DECIDED[decided]} if DECIDED[decided] else {}
        config(json.dumps({"process": {"env": ["A=1"]}, "annotations": annotations}).encode())(bundle)
        process = {"args": ["sh"], "env": ["REQUESTS_CA_BUNDLE=/x", "PYTHONHTTPSVERIFY=0", "B=é"]}
        (bundle / "process.json").write_text(json.dumps(process))
        (bundle / "broken.json").write_text("{")
        base = bundle / "crun" / "0a"
        base.mkdir(parents=True)
        labels = {"config": {"labels": [f"bundle={bundle}"]}}
        (base / record).write_text(json.dumps(labels if record == "state.json" else {"bundle": str(bundle)}))

    env = {**os.environ, "XDG_RUNTIME_DIR": str(both.bundle)}  # the runtime's directory is crun in it
    root = [] if record == "status" else ["--root", str(both.bundle / "crun")]
    for arguments in EXECS:
        raw = [os.fsencode(argument) for argument in (*root, "--log", "log.json", *arguments)]
        both.same(prepare, raw, env=env)  # type: ignore[arg-type]  # bytes


STATES: tuple[dict[str, object] | list[object], ...] = (
    {"id": "0a", "pid": 0},
    {"id": "0a", "pid": "x"},
    {"id": "0a", "bundle": "/nonexistent", "pid": 1},
    {"id": "0a", "bundle": "relative", "pid": 1},
    [],
)
FLAGS = ([], ["--inject-env"], ["--handed-on"])


def test_hooks_that_only_verify(both: Both) -> None:
    """Each policy with a container that has what is wanted and with one that has not, and with each flag by turns."""
    ends = set()
    for turn, name in enumerate(POLICIES):
        both.policy(name)
        state = json.dumps({"id": "0a", "bundle": str(both.bundle), "pid": os.getpid()}).encode()
        for env in (["REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"], ["PYTHONHTTPSVERIFY=0"]):
            data = config(json.dumps({"process": {"env": env}, "root": {"path": "r"}}).encode())
            for stage in ("createRuntime", "poststop"):
                arguments = [*FLAGS[turn % len(FLAGS)], stage]
                ends.add(both.same(data, arguments, hook=True, input=state)[0])
        for seed in range(3):
            both.same(config(generated(turn * 3 + seed)), ["createRuntime"], hook=True, input=state)
    assert ends == {0, 1}


@pytest.mark.parametrize("flags", FLAGS)
def test_hooks_without_a_state(both: Both, flags: list[str]) -> None:
    both.policy("plain")
    for text in (b"", b"{", *(json.dumps(state).encode() for state in STATES)):
        for stage in ("createRuntime", "prestart", "poststop"):
            both.same(config(b"{}"), [*flags, stage], hook=True, input=text)


def test_a_refusal_whose_message_has_no_reader(both: Both) -> None:
    """The exit status is the refusal's, not SIGPIPE's."""
    both.policy("plain")
    both.bundle.mkdir(parents=True)
    config(b"{")(both.bundle)

    def status(file: str) -> int:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return subprocess.run([file, "create", "0a"], cwd=both.bundle, stderr=writer, timeout=600).returncode
        finally:
            os.close(writer)

    assert [status(both.warm), status(both.cold)] == [1, 1]
