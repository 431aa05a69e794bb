"""`reassert verify` where NRI does the work: with the plugin, without it, and without the second line."""

from __future__ import annotations

from pathlib import Path

import marks
from harness.node import Node
from harness.paths import RUNTIMES

from e2e.cri.kubelet import cdi_spec, exclusive
from e2e.cri.node import Containerd
from e2e.cri.verify import verify
from e2e.nri.conftest import NRI_POLICY, StartPlugin

pytestmark = marks.promise(
    "`verify` starts hostile containers, tries every way to a closed device, and reports `protected` only for"
    " parts that were tried"
)

CLOSED = "  - {name: closed, annotations: [{name: 'gpu.example/*', absent: true}]}\n"
TLS = "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n"
WIRED = {name: ["nri", "hook"] for name in RUNTIMES}


def test_without_the_plugin_the_second_line_refuses_and_puts_mounts_back(containerd: Containerd, node: Node) -> None:
    """The hostile container is refused. One that overrides nothing has the base spec's env and the hook's mounts.

    runc shows what the hook said, crun only that it was our hook. Without both, nothing is protected.
    """
    verified = verify(containerd, {**WIRED, "runc-bare": ["nri"]})
    assert verified.status == 1
    expected = dict.fromkeys(RUNTIMES, ("protected", None)) | {"runc-bare": ("not protected", "not protected")}
    assert verified.results() == expected
    assert "a hook cannot set env" in verified.saw("runc")[-1]


DEVICES = dict.fromkeys(("device", "mount", "directory", "privileged", "cdi", "cdi-annotation"), "protected")
"""By each way to a device: what became of it."""


def test_with_the_plugin_every_way_is_tried_and_what_nri_cannot_do_is_refused(
    containerd: Containerd, start_plugin: StartPlugin, node: Node, gpu_node: Path
) -> None:
    """It cannot take env away; the rest is put back. CRI has env of an exec in no release of containerd yet."""
    node.write_policy(NRI_POLICY + exclusive(gpu_node) + CLOSED + TLS)
    cdi_spec(containerd, gpu_node)
    start_plugin()
    verified = verify(containerd, {"runc": WIRED["runc"]})
    assert (verified.status, verified.error) == (0, "")
    assert verified.results() == {"runc": ("protected", "protected")}
    [found] = verified.report["handlers"]
    annotations = {"annotation": "protected", "pod-annotation": "protected"}
    assert found["ways"] == {**DEVICES, **annotations, "exec-env": "not there"}
    refused, rest, *_ = verified.saw("runc")
    assert "reassert: refused default/reassert-verify-" in refused
    assert "PYTHONHTTPSVERIFY" in refused
    assert rest == "put back: 2 env, 2 mounts; in exec too"


def test_with_the_wrapper_every_way_is_tried(containerd: Containerd, node: Node, gpu_node: Path) -> None:
    """The wrapper without CDI is tried with containerd 1.6 (e2e/cri/test_verify.py)."""
    node.write_policy(NRI_POLICY + exclusive(gpu_node) + CLOSED)
    cdi_spec(containerd, gpu_node)
    verified = verify(containerd, {"crun-wrapped": ["runtime"], "crun-bare": []})
    assert not verified.error
    ways = {found["name"]: found["ways"] for found in verified.report["handlers"]}
    annotations = {"annotation": "protected", "pod-annotation": "not there"}
    assert ways["crun-wrapped"] == {**DEVICES, **annotations, "exec-env": "not there"}
    assert {name for name, result in ways["crun-bare"].items() if result == "not protected"} == {*DEVICES}
    said, number = "\n".join(verified.saw("crun-bare")), f"{gpu_node} (c 1:11)"
    assert (
        f"device: /dev/reassert-verify-0 in the container is {number}; its cgroup gives rw access to {number}" in said
    )
    assert f"directory: /reassert-verify in the container is a directory of the node that holds {gpu_node}" in said
    assert f"privileged: /dev/kmsg in the container is {number}" in said
