"""What a trial says is what Enforce does: the same refusal for the same reasons, or the same start.

For every agent of tests/innocents, every case of tests/hostile-pod, the ways in and the node's own files. Compared are
the event in Audit mode, `report`, `explain POD.yaml`, `policy test`, `audit --policy` and `audit` with the start under
Enforce. Each tool runs once, about all containers.
"""

from __future__ import annotations

import ctypes
import json
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import marks
import pytest
import yaml
from harness.paths import RUNTIMES
from harness.tools import scratch

import hook.ops
from e2e import hostile_pod
from e2e.hostile_pod import DEVICE, SUITE
from e2e.innocents import containers
from e2e.innocents.node import PROGRAM, InnocentNode
from e2e.innocents.rows import Row, rows
from e2e.innocents.verdict import EXAMPLE
from e2e.test_ways_in import NULS
from hook.cli import main as reassert

sys.path.append(str(SUITE.parent))
import by_oci  # after the path is set
import hostile_pod as suite  # likewise

pytestmark = marks.promise(
    "Audit mode's event, `report`, `explain POD.yaml`, `policy test`, `audit --policy DRAFT` and `audit` "
    "name the containers that Enforce mode refuses, and no others",
    about="Trials",
)

for _module in pkgutil.walk_packages(hook.ops.__path__, "hook.ops."):
    import_module(_module.name)  # the node's files may hide this checkout later

HOSTILE = hostile_pod.POLICY.replace("  kubelet: {root: KUBELET}\n", "  mode: Enforce\n").replace(
    "hostPath: CA", "hostPath: /srv/ca"
)
"""As e2e.hostile_pod.POLICY, at the default paths."""

README = re.sub(r"mode: Enforce +#.*", "mode: Enforce", EXAMPLE)
"""The policy under which test_innocents starts each agent; it reserves mounts too."""


REFUSED_BY_THE_RUNTIME = {
    f"hostile-{name}"
    for name in (
        *("image-link", "image-link-above", "image-link-dev", "image-link-itself", "image-link-null"),
        *("image-link-proc-masked", "image-link-proc-root", "image-link-ptmx", "image-link-root"),
        *("image-link-thread-self", "device-behind-link", "device-name-dots", "device-name-volume", "dev-volume"),
        *("dev-volume-device", "dev-volume-twice", "mount-file-at", "mount-over-root", "mount-proc"),
    )
}
"""crun or runc itself refuses what it meets on the way to a mount or a device, before reassert's hook looks."""


@dataclass
class Case:
    """A container. `pod`: its YAML, None if no pod can be so. `files`: of its image.

    `starts`: whether test_innocents starts it under the same policy, so that nothing is gained by doing it here too.
    """

    name: str
    config: dict[str, Any]
    pod: dict[str, Any] | None = None
    namespace: str = "agents"
    engine: str = "io.containerd.runtime.v2.task/k8s.io"
    files: dict[str, Any] = field(default_factory=dict)
    starts: bool = False


@dataclass
class Said:
    """What is said of a container: why it would be refused, or is; [] if it starts.

    `others`: the same by tool, as yes or no. A tool that cannot know the container is left out: `report` groups those
    without a pod, and `explain` and `policy test` want a pod's YAML.
    """

    event: list[str] = field(default_factory=list)
    enforced: list[str] = field(default_factory=list)
    others: dict[str, bool] = field(default_factory=dict)


def pod_of(row: Row) -> dict[str, Any]:
    """The pod's YAML."""
    volumes, listed = [], []
    for number, volume in enumerate(row.volumes):
        of_pod = {"path": volume["hostPath"], **({"type": volume["type"]} if "type" in volume else {})}
        volumes.append({"name": f"v{number}", "hostPath": of_pod})
        kept = {key: value for key, value in volume.items() if key not in ("hostPath", "type")}
        listed.append({"name": f"v{number}", **kept})
    for number, path in enumerate(row.emptyDirs):
        volumes.append({"name": f"e{number}", "emptyDir": {}})
        listed.append({"name": f"e{number}", "mountPath": path})
    env = {**containers.HOSTILE, **row.env}
    container = {
        "name": "main",
        "image": f"registry.example/{row.name}:1",
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": listed,
        "securityContext": row.securityContext,
    }
    spec = {"containers": [container], "volumes": volumes}
    spec.update({name: True for name in ("hostNetwork", "hostPID", "hostIPC") if getattr(row, name)})
    metadata = {"name": row.name, "namespace": row.where()[-1], "uid": containers.uid(row)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def innocent_cases(node: InnocentNode) -> Iterator[Case]:
    """Of the rows that a policy does not exclude."""
    for row in rows().values():
        if row.static:
            continue
        containers.prepare(node, row)
        engine = "io.containerd.runtime.v2.task/k8s.io" if row.is_pod else "docker/moby"
        namespace = row.where()[-1]
        pod = pod_of(row) if row.is_pod else None
        yield Case(row.name, containers.spec(row, namespace), pod, namespace, engine, starts=not row.refused)


def hostile_cases(node: InnocentNode) -> Iterator[Case]:
    """Of tests/hostile-pod."""
    node.write("/srv/ca/certs/company.crt", "company\n")
    values = {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "value": "void",
        "gone": "PYTHONHTTPSVERIFY",
        "path": "/etc/ssl",
        "base": "ssl",
        "above": "/etc",
        "below": "/etc/ssl/certs",
        "device": DEVICE,
        "dir": "/dev",
        "type": "c",
        "major": "10",
        "minor": "229",
    }
    for raw in json.loads((SUITE.parent / "cases.json").read_text()):
        yield from hostile_case(node, raw, values)


def hostile_case(node: InnocentNode, raw: dict[str, Any], values: dict[str, str]) -> Iterator[Case]:
    """One of them, with names and paths of HOSTILE."""
    text = json.dumps(raw)
    volumes = Path(f"/srv/volumes/{raw['name']}")
    for name, value in {**values, "volumes": f"{volumes}/volumes"}.items():
        text = text.replace("{" + name + "}", value)
    case = json.loads(text)
    for name, files in case.get("volumes", {}).items():
        (node.path(str(volumes)) / "volumes" / name).mkdir(parents=True, exist_ok=True)
        suite.make_files(node.path(str(volumes)) / "volumes" / name, files)
    if any(not Path(path).exists() for path in case.get("devices", ())):
        return
    config = by_oci._spec(case, volumes)
    config["annotations"] = {**containers.cri_annotations(Row(case["name"], "", ""), "team"), **config["annotations"]}
    yield Case(f"hostile-{case['name']}", config, None, "team", files=case.get("image", {}))


def ways_in(node: InnocentNode) -> Iterator[Case]:
    """Of test_ways_in and test_node_paths: members and volumes that nobody innocent has."""
    node.write("/srv/ca/certs/company.crt", "company\n")

    def plain(name: str) -> dict[str, Any]:
        row = Row(f"way-{len(name)}", "", "")
        containers.prepare(node, row)
        return containers.spec(row, "team")

    for name, change in NULS.items():
        config = plain(name)
        change(config)
        yield Case(f"way {name}", config, None, "team")
    node.path("/srv/nested/below").mkdir(parents=True, exist_ok=True)
    node.path("/srv/subpath").mkdir(exist_ok=True)
    node.path("/srv/link").symlink_to("/etc/reassert")
    for path in ("/srv/nested/below", "/srv/subpath"):
        node.run("mount", "--bind", "/etc/reassert", path)
    for what, source, options in (
        ("the policy file", "/etc/reassert/policy.yaml", []),
        ("the policy's directory", "/etc/reassert", []),
        ("the policy's directory, read-only", "/etc/reassert", ["ro"]),
        ("a link", "/srv/link", []),
        ("a subPath", "/srv/subpath", []),
        ("below a volume", "/srv/nested", []),
        ("below a read-only volume", "/srv/nested", ["ro"]),
        ("the agent's socket", "/run/reassert", []),
        ("the store", "/var/lib/reassert", []),
        ("the log", "/var/log/reassert", []),
        ("the program and the dispatchers", "/opt/reassert", []),
        ("beside them", "/srv", []),
    ):
        config = plain(what)
        config["mounts"].append(
            {"destination": "/mnt", "type": "bind", "source": source, "options": ["rbind", *options]}
        )
        yield Case(f"path {what}", config, None, "team")


def in_node(node: InnocentNode, work: Callable[[], Any]) -> Any:
    """What a function returns, called in a child process that has the node's files."""
    reader, writer = os.pipe()
    namespace = os.open(f"/proc/{node.pid}/ns/mnt", os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x00020000):
                raise OSError(ctypes.get_errno(), "setns")
            answer = work()
        except BaseException as error:  # the parent raises it
            answer = repr(error)
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    os.close(namespace)
    with os.fdopen(reader) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    assert not isinstance(answer, str), answer
    return answer


class Trial:
    """A group of cases, and what is said about each."""

    def __init__(self, node: InnocentNode, cases: list[Case], policy: str) -> None:
        self.node = node
        self.cases = cases
        self.said = {case.name: Said() for case in cases}
        self._ids: dict[str, str] = {}
        self.alone: set[str] = set()  # refused by the runtime, without a word of reassert's
        self._running: set[str] = set()
        self._bundles: list[str] = []
        self._enforce = policy
        self._audit = policy.replace("  mode: Enforce\n", "  mode: Audit\n")

    def run(self) -> dict[str, Said]:
        """Start each in Audit mode, ask every tool about all, then start each in Enforce mode."""
        self.node.write("/etc/reassert/enforce.yaml", self._enforce)
        self.node.write("/etc/reassert/audit.yaml", self._audit)
        self.node.set_policy(self._audit)
        self.node.forget_events()
        for number, case in enumerate(self.cases):
            status, self.said[case.name].event = self._start(case, number)
            if status == 0:
                self._running.add(case.name)
            elif not self.said[case.name].event:
                self.alone.add(case.name)
        self._ask()
        self._remove()
        self.node.set_policy(self._enforce)
        for number, case in enumerate(self.cases):
            if case.starts:
                continue
            status, reasons = self._start(case, number)
            if status and not reasons and case.name in self._running:
                self.alone.add(case.name)
                reasons = self.said[case.name].event
            self.said[case.name].enforced = reasons
        self._remove()
        return self.said

    def _runtime(self, name: str) -> str:
        return [*RUNTIMES][sum(map(ord, name)) % 2]

    def _remove(self) -> None:
        for name, container in self._ids.items():
            self.node.run(RUNTIMES[self._runtime(name)], "delete", "--force", container, check=False)
        for bundle in self._bundles:
            shutil.rmtree(self.node.path(bundle))
        self._ids, self._bundles = {}, []

    def _start(self, case: Case, number: int) -> tuple[int, list[str]]:
        """Exit status, and the reasons in the event log."""
        name = f"trial-{number}-{os.getpid()}"
        bundle = f"/run/containerd/{case.engine}/{name}"
        if case.engine.startswith("docker"):
            bundle = f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{name}"
        self._ids[case.name] = name
        self._bundles.append(bundle)
        containers.image(self.node, bundle)
        suite.make_files(self.node.path(bundle) / "rootfs", case.files)
        config = deepcopy(case.config)
        config["process"].update(args=["/bin/sleep", "3600"], user={"uid": 0, "gid": 0})
        self.node.write(f"{bundle}/config.json", json.dumps(config))
        wrapper = self.node.wrapper(self._runtime(case.name))
        script = 'exec > "$1/output" 2>&1; "$2" create --bundle "$1" "$3" && "$2" start "$3"'
        self.node.events()
        for again in (
            False,
            True,
        ):  # a runtime fails by itself where another test removes an empty cgroup above its own
            if again:
                self.node.run(RUNTIMES[self._runtime(case.name)], "delete", "--force", name, check=False)
            status = self.node.run("sh", "-c", script, "sh", bundle, wrapper, name, check=False).returncode
            denials = [one["message"] for event in self.node.events() for one in event.get("denials", ())]
            if status == 0 or denials:
                break
        return status, sorted(denials)

    def _output(self) -> str:
        return self.node.path(self._bundles[-1] + "/output").read_text()

    def _ask(self) -> None:
        """Each tool, once. `audit` knows the containers that run."""
        self._report()
        self._audited("audit of a draft", "--policy", "/etc/reassert/enforce.yaml")
        self._audited("audit of the trial")
        self.node.set_policy(self._enforce)
        self._audited("audit")
        pods = [case for case in self.cases if case.pod is not None]
        explained = in_node(self.node, lambda: explain_all(pods)) if pods else {}
        for name, outcome in explained.items():
            self.said[name].others["explain"] = outcome.startswith("refused: ")
        if pods:
            self._test(pods)

    def _json(self, *command: str) -> Any:
        return json.loads(self.node.run(PROGRAM, *command, "-o", "json", check=False).stdout)

    def _report(self) -> None:
        workloads = {(one["namespace"], one["workload"]): one["outcomes"] for one in self._json("report")["workloads"]}
        for case in self.cases:
            outcomes = workloads.get((case.namespace, case.name))
            if case.pod is not None and outcomes is not None:
                self.said[case.name].others["report"] = bool(outcomes["wouldRefuse"])

    def _audited(self, name: str, *options: str) -> None:
        found = {one["id"]: one for one in self._json("audit", *options)["containers"]}
        for case in self._running:
            about = found[self._ids[case]]
            refuses = any(one.startswith(("refused: ", "would be refused: ")) for one in about["next_start"])
            refuses |= "refusal" in about["changes"] or any(
                one["message"] in self.said[case].event for one in about["differences"]
            )
            self.said[case].others[name] = refuses or about["state"] == "unknown"

    def _test(self, pods: list[Case]) -> None:
        """A refusal is expected of each: what fails is said to start."""
        cases = []
        for case in pods:
            self.node.write(f"/srv/cases/{case.name}.yaml", yaml.safe_dump(case.pod))
            cases.append({"name": case.name, "pod": f"{case.name}.yaml", "expect": {"refusal": True}})
        tests = {
            "apiVersion": "reassert/v1",
            "kind": "PolicyTest",
            "metadata": {"name": "trial"},
            "policy": "/etc/reassert/enforce.yaml",
            "adapter": "runtime",
            "cases": cases,
        }
        self.node.write("/srv/cases/reassert-test.yaml", yaml.safe_dump(tests))
        [tested] = self._json("policy", "test", "/srv/cases")["tests"]
        for result in tested["results"]:
            self.said[result["case"]].others["policy test"] = not result["failures"]


def explain_all(cases: list[Case]) -> dict[str, str]:
    """What `reassert explain POD.yaml` says becomes of each pod, in one process."""
    answers = {}
    for case in cases:
        file = Path("/run/pod.yaml")
        file.write_text(yaml.safe_dump(case.pod))
        output = StringIO()
        with redirect_stdout(output), redirect_stderr(StringIO()):
            reassert(["explain", str(file), "--adapter", "runtime", "-o", "json"])
        [only] = json.loads(output.getvalue())
        answers[case.name] = only["outcome"]
    return answers


@pytest.fixture
def node() -> Iterator[InnocentNode]:
    """The node of a group."""
    made = InnocentNode(scratch())
    try:
        made.build_trust()
        made.set_policy(EXAMPLE)
        made.start_agent()
        yield made
    finally:
        made.close()


GROUPS: dict[str, tuple[Callable[[InnocentNode], Iterator[Case]], str]] = {
    "innocents": (innocent_cases, README),
    "hostile-pod": (hostile_cases, HOSTILE),
    "ways in": (ways_in, HOSTILE),
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_trial_says_what_enforce_does(node: InnocentNode, group: str) -> None:
    """What Enforce refuses, each of them refuses, and nothing else. Audit mode's event has at least the same reasons.

    It can have more: a container that config.json alone refuses is created in Audit mode, so the hook looks too.
    """
    make, policy = GROUPS[group]
    cases = list(make(node))
    trial = Trial(node, cases, policy)
    said = trial.run()
    assert trial.alone == REFUSED_BY_THE_RUNTIME & said.keys()
    differ = {}
    for name, each in said.items():
        refused = bool(each.enforced)
        either = name in trial.alone  # who says that it does not start is right too
        wrong = {tool: answer for tool, answer in each.others.items() if answer != refused and not (answer and either)}
        if bool(each.event) != refused or not set(each.enforced) <= set(each.event):
            wrong["event"] = bool(each.event)
        if wrong:
            differ[name] = wrong, each.enforced, each.event
    assert not differ, "\n".join(f"{name}: {why}" for name, why in differ.items())
    assert {bool(each.enforced) for each in said.values()} == {False, True}
    tools = {tool for each in said.values() for tool in each.others}
    assert tools >= {"audit of a draft", "audit", "audit of the trial"}
    if group == "innocents":
        assert tools >= {"report", "explain", "policy test"}
