"""Device allocations under real runtimes, while kubelet's checkpoint changes, and with the hook behind the wrapper."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.node import Node
from harness.paths import REASSERT
from harness.tools import need, run
from unit.kubelet import claim, entry, state, write_checkpoint

from e2e.runtimes import guarded

pytestmark = marks.promise(
    "An event names what was overridden or added; a mount that a device plugin placed itself is neither",
    about="Events and metrics",
)

UID = "11111111-2222-3333-4444-555555555555"
"""Of every pod that `Bundle.pod` makes."""
NULL = {"path": "/dev/gpu0", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    env: [{name: GPU, valueFrom: {deviceAllocation: {default: void}}}]
    annotations: [{name: cdi.k8s.io/*, absent: true}]
    deviceAllocations: {devices: true}
"""


@pytest.fixture
def kubelet(node: Node) -> Path:
    """The kubelet root of the scratch node, whose policy uses allocations."""
    root = node.directory / "kubelet"
    node.write_policy(POLICY.replace("KUBELET", str(root)))
    return root


def system_calls(node: Node, bundle: Bundle) -> list[str]:
    """Those of a create before a runtime that does nothing: their names, and the paths that they open or look at."""
    trace = node.directory / "trace"
    bundle.save()
    command = [str(REASSERT), "runtime", "--real", "/bin/true", *node.options(), "--"]
    create = ["create", "--bundle", str(bundle.directory), "c"]
    run("strace", "-f", "-qq", "-o", str(trace), *command, *create)
    calls = [re.match(r'\d+ +(\w+)\((?:AT_FDCWD, )?("/[^"]*")?', line) for line in trace.read_text().splitlines()]
    return [f"{call[1]} {re.sub('[0-9]+', 'N', call[2] or '')}" for call in calls if call]


def test_without_a_device_rule_nothing_of_devices_is_read(node: Node, bundle: Bundle) -> None:
    """The system calls of a start are the same on a node with allocations, claims and CDI specs as without them."""
    need(run("strace", "-o", "/dev/null", "true", check=False).returncode == 0, "strace (ptrace)", installed=False)
    root = node.directory / "kubelet"
    rule = "  rules:\n  - {name: r, env: [{name: GPU, value: '1'}], mounts: [{hostPath: /etc, mountPath: /etc/ssl}]}\n"
    node.compile(POLICY.partition("  rules:")[0].replace("KUBELET", str(root)) + rule)
    bundle.pod()
    bundle.spec["process"]["env"].append("GPU=2")
    system_calls(node, bundle)  # the event log is made
    without = system_calls(node, bundle)
    write_checkpoint(root, *[entry(f"uid-{n}", "c", f"GPU-{n}", envs={"GPU": str(n)}) for n in range(1000)])
    claims = [claim(f"c{n}", "other", devices={"d": [f"v.example/gpu={n}"]}) for n in range(1000)]
    (root / "dra_manager_state").write_bytes(state(claims))
    assert system_calls(node, bundle) == without
    assert not [call for call in without if any(word in call for word in ("dra_manager", "device-plugins", "/cdi"))]
    node.compile(POLICY.replace("KUBELET", str(root)).replace("devices: true", "exclusive: [v.example/gpu]"))
    assert len(system_calls(node, bundle)) > len(without)


def allocated(gpu: str) -> dict[str, Any]:
    """The container's allocation, as an entry of the checkpoint."""
    device = {"host_path": "/dev/null", "container_path": "/dev/gpu0", "permissions": "rw"}
    return entry(UID, "c", gpu, envs={"GPU": gpu}, devices=[device])


@contextmanager
def changing(root: Path, *states: list[dict[str, Any]]) -> Iterator[None]:
    """A context in which kubelet replaces its checkpoint again and again."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for entries in states:
                write_checkpoint(root, *entries)

    writer = threading.Thread(target=write, daemon=True)
    write_checkpoint(root, *states[0])
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_checkpoint_that_is_replaced_while_containers_start_is_read_as_one_of_its_states(
    runtime: str, kubelet: Path, node: Node, bundle: Bundle
) -> None:
    others = [entry(f"pod-{number}", "c", str(number), envs={"GPU": str(number)}) for number in range(2000)]
    bundle.pod()
    bundle.spec["process"].update(args=["/bin/sh", "-c", "echo $GPU"], env=["PATH=/bin", "GPU=all"])
    seen = []
    with changing(kubelet, [allocated("old"), *others], [*others, allocated("new")], [*others[:3], allocated("new")]):
        for number in range(20):
            bundle.save()  # as the pod wants it
            name = f"race-{bundle.directory.parents[1].name}-{number}"
            seen.append(run(runtime, "run", "--bundle", str(bundle.directory), name).stdout.strip())
    assert set(seen) <= {"old", "new"}
    assert [event["event"] for event in node.logged()] == ["container.edited"] * 20


@pytest.mark.parametrize("mode", ["Audit", "Enforce"])
def test_a_device_plugins_own_mount_before_others_is_no_edit(
    mode: str, runtime: str, kubelet: Path, node: Node, bundle: Bundle
) -> None:
    """So Audit mode names whom Enforce mode changes, and nobody else."""
    policy = POLICY.replace("KUBELET", str(kubelet)).replace("{devices: true}", "{mounts: true}")
    node.write_policy(policy.replace("spec:\n", f"spec:\n  mode: {mode}\n"))
    driver, other = node.directory / "driver", node.directory / "other"
    for path in (driver, other):
        path.mkdir()
        (path / "name").write_text(path.name)
    mount = {"host_path": str(driver), "container_path": "/driver", "read_only": True}
    write_checkpoint(kubelet, entry(UID, "c", "GPU-4", envs={"GPU": "GPU-4"}, mounts=[mount]))
    bundle.spec["process"].update(args=["/bin/cat", "/driver/name", "/later/name"], env=["PATH=/bin", "GPU=GPU-4"])
    bundle.pod()

    def output(name: str) -> str:
        bundle.save()  # as the engine wrote it
        return run(
            runtime, "run", "--bundle", str(bundle.directory), f"{name}-{bundle.directory.parents[1].name}"
        ).stdout

    for source, destination in ((driver, "/driver"), (other, "/later")):
        bundle.bind(source, destination, "rprivate", "ro")
    assert (output("honest"), node.logged()) == ("driverother", [])
    bundle.bind(other, "/driver", "rprivate", "ro")
    assert output("hostile") == ("otherother" if mode == "Audit" else "driverother")
    [event] = node.logged()
    assert [edit["before"] for edit in event["edits"]] == [[{"destination": "/driver", "source": str(other)}]]


def hooked(node: Node, bundle: Bundle) -> str:
    """The hook's refusal of the bundle, "" if it accepts it; called as by a runtime."""
    state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 0, "bundle": str(bundle.directory)}
    command = [str(REASSERT), "hook", *node.options(), "createRuntime"]
    done = run(*command, input=json.dumps(state), check=False)
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr


@marks.claim("allocation", "hook")
def test_the_hook_refuses_what_it_comes_too_late_for(kubelet: Path, node: Node, bundle: Bundle) -> None:
    write_checkpoint(kubelet, allocated("GPU-4"))
    right = {
        "env": ["PATH=/bin", "GPU=GPU-4"],
        "devices": [NULL],
        "rules": [{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}],
        "annotations": {},
    }
    for part, wrong, complaint in (
        ("", None, ""),
        ("env", ["GPU=GPU-4", "GPU=all"], "env GPU is not what the policy wants"),
        ("devices", [], "device /dev/gpu0 is not what the policy wants"),
        ("devices", [{**NULL, "minor": 5}], "device /dev/gpu0 is not what the policy wants"),
        ("rules", [{"allow": False, "access": "rwm"}], "device /dev/gpu0 is not what the policy wants"),
        ("annotations", {"cdi.k8s.io/x": "y"}, "annotation cdi.k8s.io/x is not what the policy wants"),
    ):
        spec = {**right, part: wrong}
        bundle.pod(**spec["annotations"])
        bundle.spec["process"]["env"] = spec["env"]
        bundle.spec["linux"]["devices"] = spec["devices"]
        bundle.spec["linux"]["resources"] = {"devices": spec["rules"]}
        bundle.save()
        said = hooked(node, bundle)
        assert complaint in said
        assert bool(said) == bool(complaint), said


VISIBLE = "NVIDIA_VISIBLE_DEVICES"
WITH_A_MOUNT = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    env: [{name: NVIDIA_VISIBLE_DEVICES, valueFrom: {deviceAllocation: {default: void}}}]
    mounts: [{hostPath: CA, mountPath: /etc/ssl, readOnly: true}]
"""


@marks.hole(
    "NVIDIA's runtime writes `void` in place of a GPU's UUID in its CDI modes: each container with a GPU was refused "
    "where a rule with a mount or `exclusive` applied too",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("written", ["void", "all"])
def test_void_is_what_nvidias_runtime_leaves_of_an_allocated_gpu(
    pair: tuple[str, str], kubelet: Path, node: Node, bundle: Bundle, written: str
) -> None:
    """It stands behind reassert, and gives the GPU that the variable names. No other value is let through."""
    real, adapter = pair
    node.compile(WITH_A_MOUNT.replace("KUBELET", str(kubelet)))
    write_checkpoint(kubelet, entry(UID, "c", "GPU-4", envs={VISIBLE: "GPU-4"}))
    bundle.pod()
    bundle.spec["process"]["env"] = ["PATH=/bin", f"{VISIBLE}=GPU-4"]
    nvidias = node.directory / "nvidias-runtime"
    change = f"s/{VISIBLE}=GPU-4/{VISIBLE}={written}/"
    create = f"case \" $* \" in *' create '*) sed --in-place {change} {bundle.config} ;; esac"
    nvidias.write_text(f'#!/bin/sh\n{create}\nexec {real} "$@"\n')
    nvidias.chmod(0o755)
    container = guarded(adapter, str(nvidias), node, bundle)
    if written == "void":
        with container:
            assert [each for each in container.environ() if each.startswith(VISIBLE)] == [f"{VISIBLE}=void"]
            assert container.mounts("/etc/ssl")
        assert [edit["name"] for event in node.logged() for edit in event["edits"]] == ["/etc/ssl"]
    else:
        assert container.create() != 0
        assert f"env {VISIBLE} is not what the policy wants" in container.output()


NO_REQUESTS = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  rules:
  - {name: no-devices-by-mount, mounts: [{mountPath: /var/run/nvidia-container-devices, absent: true}]}
"""


@marks.hole(
    "A mount of /dev/null at /var/run/nvidia-container-devicesall, beside the reserved path, asked NVIDIA's runtime "
    "for every GPU (its volume-mounts strategy), without a rule with `exclusive`",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("after", ["all", "cdi/nvidia.com/gpu/all"])
def test_a_mount_beside_the_path_by_which_nvidias_runtime_is_asked_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, after: str
) -> None:
    """That runtime compares the beginning of the text. One below the path is removed."""
    real, adapter = pair
    node.compile(NO_REQUESTS)
    bundle.pod()
    bundle.bind("/dev/null", f"/var/run/nvidia-container-devices{after}", "ro")
    container = guarded(adapter, real, node, bundle)
    assert container.create() != 0
    assert f"mount /var/run/nvidia-container-devices{after} asks NVIDIA's runtime for a device" in container.output()
