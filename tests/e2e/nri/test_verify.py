"""`reassert node verify` where NRI does the work: with the plugin, without it, and without the second line."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.kubelet import cdi_spec, exclusive
from e2e.cri.node import NRI_GENERATIONS, Containerd
from e2e.cri.verify import verify
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.support import Node

CLOSED = "  - {name: closed, annotations: [{name: 'gpu.example/*', absent: true}]}\n"
WIRED = {name: ["nri", "hook"] for name in RUNTIMES}
BY_HANDLER = [
    (generation, handler)
    for generation in sorted(NRI_GENERATIONS)
    for handler in ("runc", "crun-wrapped")
    if (generation, handler) != ("1.7", "crun-wrapped")
]


def test_with_the_plugin_every_handler_is_protected_and_what_nri_cannot_do_is_refused(
    containerd: Containerd, start_plugin: StartPlugin, node: Node
) -> None:
    """It cannot take env away; the rest is put back."""
    node.write_policy(NRI_POLICY + "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n")
    start_plugin()
    verified = verify(containerd, WIRED)
    assert (verified.status, verified.error) == (0, "")
    assert verified.results() == dict.fromkeys(RUNTIMES, ("protected", "protected"))
    for handler in WIRED:
        refused, rest = verified.saw(handler)
        assert "reassert: refused default/reassert-verify-" in refused
        assert "PYTHONHTTPSVERIFY" in refused
        assert rest == "put back: 2 env, 2 mounts; in exec too"


@pytest.mark.parametrize("containerd", ["2.1"], indirect=True)
def test_without_the_plugin_the_second_line_refuses_and_puts_mounts_back(containerd: Containerd, node: Node) -> None:
    """The hostile container is refused. One that overrides nothing has the base spec's env and the hook's mounts.

    runc shows what the hook said, crun only that it was our hook. Without both, nothing is protected.
    """
    verified = verify(containerd, {**WIRED, "runc-bare": ["nri"]})
    assert verified.status == 1
    expected = dict.fromkeys(RUNTIMES, ("protected", None)) | {"runc-bare": ("not protected", "not protected")}
    assert verified.results() == expected
    assert "a hook cannot set env" in verified.saw("runc")[-1]


@pytest.mark.parametrize(("containerd", "handler"), BY_HANDLER, indirect=["containerd"])
def test_every_way_to_a_device_is_tried(
    containerd: Containerd, start_plugin: StartPlugin, node: Node, gpu_node: Path, handler: str
) -> None:
    """containerd 1.7 as shipped has no CDI. CRI has env of an exec in no release of containerd yet.

    The wrapper without CDI is tried with containerd 1.6 (e2e/cri/test_verify.py).
    """
    node.write_policy(NRI_POLICY + exclusive(gpu_node) + CLOSED)
    cdi_spec(containerd, gpu_node)
    if handler == "runc":
        start_plugin()
    has_cdi = "1.7" not in containerd.cri.version()
    adapters = ["nri", "hook"] if handler == "runc" else ["runtime"]
    bare: dict[str, list[str]] = {"crun-bare": []} if handler == "crun-wrapped" and has_cdi else {}
    verified = verify(containerd, {handler: adapters, **bare})
    assert not verified.error
    ways = {found["name"]: found["ways"] for found in verified.report["handlers"]}
    devices = ["device", "mount", "directory", "privileged", *(["cdi", "cdi-annotation"] if has_cdi else [])]
    by_annotation = {"annotation": "protected", "pod-annotation": "protected" if handler == "runc" else "not there"}
    none = {} if has_cdi else {"cdi": "not there", "cdi-annotation": "protected"}
    assert ways[handler] == {"exec-env": "not there", **dict.fromkeys(devices, "protected"), **none, **by_annotation}
    if bare:
        assert {name for name, result in ways["crun-bare"].items() if result == "not protected"} == {*devices}
