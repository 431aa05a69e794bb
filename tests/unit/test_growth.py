"""What an author's lists cost grows as they do: four times as much of anything takes at most five times as long.

No limit in seconds finds a loop in a loop before it is too late. So every adapter decides in this process about
containers of n and of 4n entries, and what is compared is the number of executed lines, which is the same on each
machine; and the CPU time, for what C does within a line. A function of the decision that loops and that nothing here
reaches fails a test: it would grow unseen.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import marks
import pytest
from harness.node import Node

from hook.compile.compiler import compile_bytes
from hook.core.base.errors import Refused, Unacceptable
from hook.core.base.mountinfo import Row, mount_table
from hook.core.container.identity import identify
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.linux.look import View
from hook.core.linux.lookdevices import devices_below
from hook.core.reserve.place_mount import PlaceMount
from hook.entry import hook as hooks
from hook.entry import runtime
from hook.entry.caller import Caller, Options
from hook.entry.cmdline import Invocation
from hook.nri import ttrpc
from hook.nri.creation import Decider
from hook.nri.report import Report
from hook.nri.request import CREATE, Request
from hook.ops.explain import explain
from hook.resident.metrics import NoMetrics
from hook.resident.policy import Resident
from unit.nri.support import VALIDATE, create_request
from unit.support import CONTAINERD, ROOT, WithPolicy, config, document

pytestmark = [
    pytest.mark.slow,
    marks.promise("A container's time and memory grow linearly with each of its lists", about="Decision"),
]

Json = dict[str, Any]

CORE = (
    "plan.py",
    "decide.py",
    "report.py",
    "audited.py",
    "reserve",
    "container",
    "linux",
    "policy/model.py",
    "facts/exclusive.py",
)
"""The decision: all files of hook/ in which a container's lists are looked at."""

LINES, TIMES = 5.0, 8.0
"""Of four times the entries: how much more of both is linear. Four times four would be 16."""

FEW = 60


# -- Containers of n entries of something


def _bind(path: str, source: str = "/srv/volume", *options: str) -> Json:
    return {"destination": path, "type": "bind", "source": source, "options": ["rbind", *options]}


def _device(path: str, minor: int) -> Json:
    return {"path": path, "type": "c", "major": 195, "minor": minor}


def _rule(minor: int | None) -> Json:
    rule = {"allow": True, "type": "c", "major": 195, "access": "rw"}
    return rule if minor is None else {**rule, "minor": minor}


def _mounts(spec: Json, mounts: list[Json]) -> None:
    spec["mounts"] += mounts


def _linux(spec: Json, name: str, entries: list[Any]) -> None:
    spec["linux"].setdefault(name, []).extend(entries)


def _rules(spec: Json, rules: list[Json]) -> None:
    spec["linux"].setdefault("resources", {}).setdefault("devices", []).extend(rules)


DIMENSIONS: dict[str, Callable[[Json, int], None]] = {
    "env": lambda spec, n: spec["process"]["env"].extend(f"A{i}=1" for i in range(n)),
    "env of a reserved name": lambda spec, n: spec["process"]["env"].extend(f"CA={i}" for i in range(n)),
    "env of an allowed name": lambda spec, n: spec["process"]["env"].extend(f"CHOICE=ab{i}c" for i in range(n)),
    "long env of an allowed name": lambda spec, n: spec["process"]["env"].append(f"CHOICE={'ab' * 50 * n}x"),
    "env that must be absent": lambda spec, n: spec["process"]["env"].extend(f"N_{i}=1" for i in range(n)),
    "env of a pattern without an end": lambda spec, n: spec["process"]["env"].extend(f"Asecret{i}" for i in range(n)),
    "long env": lambda spec, n: spec["process"]["env"].extend([f"L={'x' * 50 * n}", f"N_{'y' * 50 * n}=1"]),
    "env with escapes": lambda spec, n: spec["process"]["env"].extend(f'E{i}="\\\n' for i in range(n)),
    "arguments": lambda spec, n: spec["process"]["args"].extend(map(str, range(n))),
    "mounts": lambda spec, n: _mounts(spec, [_bind(f"/m{i}", f"/srv/{i}") for i in range(n)]),
    "mounts in one directory": lambda spec, n: _mounts(spec, [_bind(f"/opt/a/b/{i}") for i in range(n)]),
    "mounts at one path": lambda spec, n: _mounts(spec, [_bind("/m") for _ in range(n)]),
    "mounts in each other": lambda spec, n: _mounts(
        spec, [_bind(f"/v{'/a' * (i % 20)}{f'/{i}' * (i > 19)}") for i in range(n)]
    ),
    "mounts by links": lambda spec, n: _mounts(spec, [_bind(f"/links/{i % FEW}/x{i}") for i in range(n)]),
    "mounts below": lambda spec, n: _mounts(spec, [_bind(f"/etc/ssl/{i}") for i in range(n)]),
    "mounts above": lambda spec, n: _mounts(spec, [_bind("/etc", f"/srv/{i}") for i in range(n)]),
    "mounts let through": lambda spec, n: _mounts(spec, [_bind(f"/etc/pki/let/{i}") for i in range(n)]),
    "mounts in the node's files": lambda spec, n: _mounts(
        spec, [_bind("/node", "/", "ro"), *[_bind(f"/node/srv/{i}") for i in range(n)]]
    ),
    "mount with long path": lambda spec, n: _mounts(spec, [_bind("/long" + "/aa" * n), _bind("/long/" + "b" * n)]),
    "mount with dots": lambda spec, n: _mounts(spec, [_bind("/d/.." * n + "/x"), _bind("/.//" * n)]),
    "mount with long source": lambda spec, n: _mounts(spec, [_bind("/source", "/s" * n)]),
    "options of a mount": lambda spec, n: _mounts(spec, [_bind("/options", "/s", *map(str, range(n)))]),
    "devices": lambda spec, n: _linux(spec, "devices", [_device(f"/dev/d{i}", i) for i in range(n)]),
    "devices elsewhere": lambda spec, n: _linux(spec, "devices", [_device(f"/e{i}/d", i) for i in range(n)]),
    "devices by links": lambda spec, n: _linux(
        spec, "devices", [_device(f"/links/{i % FEW}/{i}", i) for i in range(n)]
    ),
    "devices of others": lambda spec, n: _linux(spec, "devices", [_device(f"/dev/nvidia{i}", i) for i in range(n)]),
    "device with long path": lambda spec, n: _linux(spec, "devices", [_device("/dev" + "/aa" * n, 7)]),
    "device rules": lambda spec, n: _rules(spec, [_rule(i) for i in range(n)]),
    "device rules for many": lambda spec, n: _rules(spec, [_rule(None) for _ in range(n)]),
    "annotations": lambda spec, n: spec["annotations"].update({f"a{i}": "" for i in range(n)}),
    "annotations that must be absent": lambda spec, n: spec["annotations"].update({f"evil/{i}": "" for i in range(n)}),
    "annotations that steer": lambda spec, n: spec["annotations"].update({f"run.oci.{i}": "" for i in range(n)}),
    "long annotation": lambda spec, n: spec["annotations"].update({f"evil/{'x' * 50 * n}": "y" * 50 * n}),
    "hooks": lambda spec, n: spec["hooks"]["createRuntime"].extend({"path": f"/h{i}", "args": ["h"]} for i in range(n)),
    "masked paths": lambda spec, n: _linux(spec, "maskedPaths", [f"/proc/{i}" for i in range(n)]),
    "read-only paths": lambda spec, n: _linux(spec, "readonlyPaths", [f"/opt/{i}/x" for i in range(n)]),
    "paths in env": lambda spec, n: spec["process"]["env"].extend(f"P{i}=/etc/ssl/{i}" for i in range(n)),
    "namespaces": lambda spec, n: _linux(spec, "namespaces", [{"type": "x", "path": str(i)} for i in range(n)]),
}

LISTS = [name for name in DIMENSIONS if "long" not in name and name not in ("arguments", "paths in env", "namespaces")]
"""Dimensions of lists: one may multiply another."""

TOGETHER = [LISTS, *(Random(seed).sample(LISTS, len(LISTS) // 2) for seed in range(5))]
"""All, and halves of them: what a list multiplies with another one grows where both are, also if a third one, which is
in some halves only, gets the container refused early."""


def spec_of(directory: Path, sizes: dict[str, int]) -> bytes:
    made = config(["PATH=/bin"], [], dict(CONTAINERD), hooks={"createRuntime": []})
    made["root"]["path"] = str(directory / "rootfs")
    for name, size in sizes.items():
        DIMENSIONS[name](made, size)
    return json.dumps(made, separators=(",", ":")).encode()


# -- The adapters


POLICY = [
    {
        "name": "r",
        "env": [
            {"name": "CA", "value": "/ca.pem"},
            {"name": "CHOICE", "oneOf": ["x"], "pattern": "a*b?*b*?c", "else": "x"},
            {"name": "N_*", "absent": True},
            {"name": "*secret*", "absent": True},
        ],
        "annotations": [{"name": "evil/*", "absent": True}],
        "mounts": [
            {"hostPath": "CA", "mountPath": "/etc/ssl", "readOnly": False},
            {"hostPath": "CA", "mountPath": "/etc/pki", "readOnly": True, "allowBelow": ["/etc/pki/let"]},
        ],
    },
    {"name": "tried", "mode": "Audit", "env": [{"name": "TRIED", "value": "1"}]},
]
EXCLUSIVE = {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/nvidia*"]}}


class Hook(hooks.HookCaller):
    """A runtime that asks the hook about one bundle."""

    def __init__(self, options: Options, bundle: Path) -> None:
        super().__init__(options, {})
        self.bundle = bundle

    def say(self, text: str, is_hook: bool = False) -> None:
        """To nobody: the runtime's standard error would be that of the tests."""

    def state(self) -> bytes:
        return json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(self.bundle)}).encode()


class GrowingNode(Node):
    """A node with a bundle, and every adapter on it. Each returns after it has decided about a config.json."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, policy="")
        self.bundle = directory / "k8s.io" / "0a1b"
        rootfs = self.bundle / "rootfs"
        for name in ("etc/ssl", "etc/pki/let", "dev", "opt/a/b", "links", "proc"):
            (rootfs / name).mkdir(parents=True)
        for number in range(FEW):
            (rootfs / f"links/{number}").symlink_to(f"../links/{number + 1}" if number % 30 < 29 else "/opt/a")
        self.config = self.bundle / "config.json"
        (self.ca / "let").mkdir()
        for number in range(2000):  # without a place in the read-only directory, a mount refuses the container early
            (self.ca / f"let/{number}").touch()
        rules = json.loads(json.dumps([*POLICY, EXCLUSIVE]).replace('"CA"', json.dumps(str(self.ca)), 0))
        for rule in rules:
            for mount in rule.get("mounts", ()):
                mount["hostPath"] = str(self.ca)
        kubelet = directory / "kubelet"
        kubelet.mkdir()
        self.compile(document(*rules, kubelet={"root": str(kubelet)}))
        resident = self.resident = Resident(str(self.policy), str(self.store))
        resident.get(60)
        self.report = Report(str(self.events), NoMetrics())
        self.validator = Decider(resident, self.report)
        self.compile_once = cache(compile_bytes)

    def wrapper(self) -> None:
        options = Options(["--real=/bin/true", *self.options(), "--"], ("real", "hook"))
        invocation = Invocation(["create", "--bundle", str(self.bundle), "x"])
        with contextlib.suppress(Refused):
            runtime.passed_on(invocation, Caller(options, {}))

    def exec(self) -> None:
        """Of a container that was created: its env stands in the process file."""
        options = Options(["--real=/bin/true", *self.options(), "--"], ("real", "hook"))
        state = self.directory / "root/x/state.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps({"config": {"labels": [f"bundle={self.bundle}"]}}))
        process = self.directory / "process.json"
        process.write_text(json.dumps(json.loads(self.config.read_bytes())["process"]))
        decision = {"version": 1, "policy": "", "env": {"CA": "/ca"}, "absent": ["N_*", "*secret*"]}
        decision["allowed"] = {"CHOICE": {"oneOf": ["x"], "pattern": "a*b?*b*?c"}}
        self.config.write_text(json.dumps({"process": {}, "annotations": {"reassert/decision": json.dumps(decision)}}))
        arguments = ["--root", str(state.parents[1]), "exec", "--process", str(process), "x"]
        with contextlib.suppress(Refused):
            runtime.passed_on(Invocation(arguments), Caller(options, {}))

    def hook(self) -> None:
        """Without the look, for which there has to be a container."""
        options = hooks.options_of([*self.options(), "--inject-env", "createRuntime"])
        with contextlib.redirect_stderr(io.StringIO()):
            hooks.run(Hook(options, self.bundle))

    def look(self) -> None:
        """A container's root with all mounts of config.json in its table, as it is when they are looked at."""
        spec = Spec(self.config.read_bytes(), "config.json")
        root = os.open(self.bundle / "rootfs", os.O_PATH | os.O_DIRECTORY)
        try:
            table = mount_table(0)
            inside = os.fstat(root)
            own = View(None, root, table=table, spec=spec, sources={"/": inside}).own
            prefix = str(self.bundle / "rootfs")
            table[own] = Row(f"{own} 1 0:1 / {prefix} rw - ext4 x rw")
            for number, mount in enumerate(spec.mounts, 10_000_000):
                path = mount.destination.replace(" ", "")
                table[number] = Row(f"{number} {own} 0:2 / {prefix}{path} rw - ext4 x rw")
            let = frozenset(mount.path for mount in spec.mounts)
            reserved = [PlaceMount("r", "/etc/pki", None, companions=let, before=[])]
            ca = Mount({"destination": "/etc/ssl", "source": str(self.ca), "options": ["rbind"]})
            placed = PlaceMount("r", "/etc/ssl", ca, companions=let, before=[])
            closed = self.closed(spec)
            if closed:
                with contextlib.suppress(Unacceptable):
                    devices_below(root, prefix, table, exclusive=closed)
            for edits in (reserved, [*reserved, placed]):
                with contextlib.suppress(Unacceptable):
                    View(
                        None, root, table=table, spec=spec, sources={"/": inside, "/etc/ssl": os.stat(self.ca)}
                    ).problems(edits)
        finally:
            os.close(root)

    def closed(self, spec: Spec) -> Any:
        """The devices that the container must not have."""
        case = Case(WithPolicy(self.resident.get(0), "look"), "")
        return case.decide(identify(spec, copied=True), spec).exclusive

    def request(self) -> Any:
        """NRI's question about a container that would be the same."""
        spec = json.loads(self.config.read_bytes())
        mounts = [{key: m[key] for key in ("destination", "type", "source", "options")} for m in spec["mounts"]]
        linux = {"devices": spec["linux"].get("devices", [])}
        rules = [
            {**rule, **{key: {"value": rule[key]} for key in ("major", "minor") if key in rule}}
            for rule in spec["linux"].get("resources", {}).get("devices", [])
        ]
        return create_request(
            spec["process"]["env"],
            mounts,
            annotations=spec["annotations"],
            args=spec["process"]["args"],
            linux={**linux, "resources": {"devices": rules}},
            pod={"annotations": spec["annotations"]},
        )

    def nri(self) -> None:
        request = self.request()
        reply = self.validator.create(Request(CREATE), request.pod, request.container)
        reply.tell(self.report)

    def nri_validate(self) -> None:
        """What another plugin asked for is as long as the container itself."""
        asked = self.request()
        container, pod = asked.container, asked.pod
        mounts = [ttrpc.get("Mount").FromString(data) for data in reversed(container.mounts)]
        devices = [ttrpc.get("LinuxDevice").FromString(data) for data in reversed(container.linux.devices)]
        adjust = {
            "annotations": dict(container.annotations.items()),
            "mounts": [
                {"destination": m.destination, "type": m.type, "source": m.source, "options": list(m.options)}
                for m in mounts
            ],
            "env": [{"key": key, "value": value} for key, _, value in (e.partition("=") for e in container.env)],
            "linux": {"devices": [{"path": d.path, "type": d.type, "major": 195, "minor": d.minor} for d in devices]},
        }
        reply = self.validator.validate(Request("validate"), VALIDATE(pod=pod, container=container, adjust=adjust))
        reply.tell(self.report)

    def explain(self) -> None:
        """With a policy that is compiled once, which executes as many lines as a decision about hundreds of entries."""
        for output in ("json", "table"):
            with patch("hook.ops.explain.compile_bytes", self.compile_once), contextlib.redirect_stdout(io.StringIO()):
                explain(str(self.config), str(self.policy), "/nowhere", output)


ADAPTERS: dict[str, Callable[[GrowingNode], None]] = {
    "wrapper": GrowingNode.wrapper,
    "exec": GrowingNode.exec,
    "hook": GrowingNode.hook,
    "look": GrowingNode.look,
    "nri": GrowingNode.nri,
    "validate": GrowingNode.nri_validate,
    "explain": GrowingNode.explain,
}

# -- Measures


class Executed:
    """Counts the executed lines of hook/, and remembers the functions."""

    def __init__(self) -> None:
        self.lines = 0
        self.functions: set[tuple[str, str]] = set()
        self._codes: dict[CodeType, bool] = {}

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        ours = self._codes.get(code)
        if ours is None:
            ours = self._codes[code] = code.co_filename.startswith(f"{ROOT}/hook/")
            if ours:
                self.functions.add((code.co_filename.removeprefix(f"{ROOT}/hook/core/"), code.co_qualname))
        return self._line if ours else None

    def _line(self, _: FrameType, event: str, __: object) -> Any:
        self.lines += event == "line"
        return self._line

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)


REACHED: set[tuple[str, str]] = set()


def lines(node: GrowingNode, adapter: str, sizes: dict[str, int]) -> int:
    """Of one decision."""
    node.config.write_bytes(spec_of(node.bundle, sizes))
    executed = Executed()
    with executed.counting():
        ADAPTERS[adapter](node)
    REACHED.update(executed.functions)
    return executed.lines


def seconds(node: GrowingNode, adapter: str, sizes: dict[str, int]) -> float:
    """CPU time of one decision."""
    node.config.write_bytes(spec_of(node.bundle, sizes))
    began = time.thread_time()
    ADAPTERS[adapter](node)
    return time.thread_time() - began


@pytest.fixture
def node(root_dir: Path) -> Iterator[GrowingNode]:
    made = GrowingNode(root_dir)
    yield made
    made.report.close()


@marks.hole(
    "250 volumes and a device outside /dev cost seconds of CPU time, 500 volumes minutes",
    since="0.2.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_four_times_as_much_takes_four_times_as_many_lines(node: GrowingNode, adapter: str) -> None:
    lines(node, adapter, {})  # what is remembered after the first decision
    grown = {}
    for name in DIMENSIONS:
        small, large = (lines(node, adapter, {name: size}) for size in (100, 400))
        grown[name] = round(large / small, 2)
    assert {name: ratio for name, ratio in grown.items() if ratio > LINES} == {}


@marks.hole(
    "Long links of an image on the way to reserved paths cost 6 s of CPU time",
    since="0.2.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_four_times_as_much_takes_four_times_the_time(node: GrowingNode, adapter: str) -> None:
    """What C does within a line, as a search in a list. The best of some times, and of more where it grew too much."""
    seconds(node, adapter, {})
    grown = {}
    for name in DIMENSIONS:
        best = [1e9, 1e9]
        seconds(node, adapter, {name: 1})
        for _ in range(25):
            best = [min(old, seconds(node, adapter, {name: size})) for old, size in zip(best, (500, 2000), strict=True)]
            if best[1] < TIMES * best[0]:
                break
        grown[name] = round(best[1] / best[0], 2)
    assert {name: ratio for name, ratio in grown.items() if ratio >= TIMES} == {}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_lists_do_not_multiply(node: GrowingNode, adapter: str) -> None:
    lines(node, adapter, {})
    grown = {}
    for names in TOGETHER if adapter != "explain" else ():  # it compiles the policy, and decides as the others
        small, large = (lines(node, adapter, dict.fromkeys(names, size)) for size in (80, 320))
        grown[tuple(names)] = round(large / small, 2)
    assert {names: ratio for names, ratio in grown.items() if ratio > LINES} == {}


def looping(path: Path) -> Iterator[tuple[str, str]]:
    """The functions of a file that have a loop, by the names that the interpreter gives them."""

    def of(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                yield from of(statement.body, f"{prefix}{statement.name}.")
            elif isinstance(statement, ast.FunctionDef) and any(
                isinstance(each, (ast.For, ast.While, ast.comprehension)) for each in ast.walk(statement)
            ):
                yield prefix + statement.name

    for name in of(ast.parse(path.read_text("utf-8")).body, ""):
        yield str(path.relative_to(ROOT / "hook/core")), name


_NODES = "loops over records of the node: kubelet's checkpoint and claims, CDI specs, its own devices"
_ALLOCATED = "once for each name or mount that a device plugin allocated, which no pod author writes"
_ONE = "one pass over one short text, or one list, for each container"
_MOUNTED = "needs real mounts in a container: tests/e2e/test_mounts.py has 300 of them"
_SENTRY = "one pass over the mounts, or over the links of one walk, which Steps limits"
UNREACHED: dict[str, str] = {
    "container/allocation.py": _NODES,
    "container/cdi.py": _NODES,
    "container/claims.py": _NODES,
    "container/injections.py": _NODES,
    "container/nodes.py directories_above": _NODES,
    "facts/exclusive.py": _NODES,
    "reserve/allocated.py": _ALLOCATED,
    "reserve/unsafe_annotations.py _may_have_rules": "one pass over the policy's rules",
    "reserve/place_device.py PlaceDevice.is_same_node": "loops over three names",
    "reserve/place_device.py PlaceDevice.may_be_used": _ALLOCATED,
    "container/runtime_records.py _sandbox_state": "one pass over gVisor's directory of states",
    "container/runtime_records.py record_in": "two names of files",
    "container/dockershim.py": "one pass over the mounts, and over names of the node's pods",
    "container/identity.py crio_image": _ONE,
    "container/identity.py _docker": _ONE,
    "container/identity.py _cgroup_uid": _ONE,
    "container/spec.py _names": _ONE,
    "container/spec.py shared_processes": _ONE,
    "policy/model.py": _ONE,
    "reserve/place_mount.py PlaceMount.conflict": _ONE,
    "report.py of_drift": "of a running container, which only `audit` reports",
    "report.py of_failure": "one pass over the rules that match, after an error",
    "reserve/exclusive.py _CgroupRules.given_at": "the four scopes of rules that are about one device",
    "report.py _completed": "loops over the edits of one draft, of which an event has at most 64",
    "linux/look_node_paths.py look_at_node_paths": _MOUNTED,
    "linux/lookdevices.py _are_delegated": "one pass over the node's mounts",
    "linux/foresee.py": _MOUNTED,
    "linux/look_node_paths.py _OpenVolumes.cover": "four descriptors",
    "linux/look.py View._over_the_root": _MOUNTED,
    "linux/look_node_paths.py mounted_by": _MOUNTED,
    "linux/look.py View._check_complete": _MOUNTED,
    "linux/look.py View._was_asked_for": _MOUNTED,
    "linux/look.py View._check_subtree": _MOUNTED,
    "linux/gvisor.py astray": _SENTRY,
    "linux/gvisor.py confine": _SENTRY,
    "linux/gvisor.py missing": _SENTRY,
    "linux/gvisor.py _reason": _SENTRY,
    "linux/idmap.py": _MOUNTED,
    "linux/look.py View._nodes_points": _MOUNTED,
    "linux/look.py View.was_replaced": _MOUNTED,
    "linux/look.py View._of_the_node": _MOUNTED,
    "linux/look.py look": _MOUNTED,
    "linux/lookdevices.py look_at_cgroups": "one pass over the mounts, and over the parents of cgroups'",
    "linux/look.py look_at_processes": "four passes over the table of mounts",
    "reserve/shared_processes.py _by_volume": _ONE,
    "reserve/shared_processes.py want": "one pass over the policy's rules",
    "reserve/exclusive.py Closed.asks_for_unread": "a CDI spec that cannot be read; one pass over each list",
    "reserve/exclusive.py Closed._all_else": "one pass over the drivers of the node, one over the container's devices",
    "linux/mountns.py": _MOUNTED,
    "linux/volumes.py": "the policy's emptyDirs, and on sweeps the pods with tmpfs",
    "linux/place.py": _MOUNTED,
}
"""Functions, or whole files, with loops that no dimension reaches, and why that lets nothing grow unseen."""


def test_every_loop_of_the_decision_is_reached(node: GrowingNode) -> None:
    """A new function with a loop is driven by a dimension above, or UNREACHED says over what it loops."""
    REACHED.clear()  # what other tests of this file reached would make this one depend on their order
    for adapter in ADAPTERS:
        for names in (*TOGETHER, [], *([name] for name in DIMENSIONS)):
            lines(node, adapter, dict.fromkeys(names, 3))
    files = [ROOT / "hook/core" / name for name in CORE]
    found = [f for at in files for f in (sorted(at.glob("*.py")) if at.is_dir() else [at])]
    loops = {each for file in found for each in looping(file)}
    missing = {f"{file} {name}" for file, name in loops - REACHED}
    assert {each for each in missing if each not in UNREACHED and each.split()[0] not in UNREACHED} == set()
    assert UNREACHED.keys() - missing - {each.split()[0] for each in missing} == set()
