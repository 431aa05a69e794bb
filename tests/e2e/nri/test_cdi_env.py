"""In what form each containerd leaves the env of a CDI spec, on which `valueFrom.deviceAllocation` relies."""

from __future__ import annotations

import json

import pytest

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd

pytestmark = one_runtime

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize("env", [[], [(VISIBLE, "GPU-4")], [(VISIBLE, "GPU-4"), ("A", "1"), (VISIBLE, "all")]])
def test_value_of_the_spec_is_the_last_one_of_its_name(
    start_pod: StartPod, containerd: Containerd, env: list[tuple[str, str]]
) -> None:
    """containerd 1.7 takes CDI devices only where it is told to, and this one is not."""
    directory = containerd.view("etc/cdi")
    directory.mkdir(exist_ok=True)
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "vendor.example/gpu",
        "devices": [{"name": "0", "containerEdits": {"env": [f"{VISIBLE}=void"]}}],
    }
    (directory / "vendor.json").write_text(json.dumps(spec))
    container = start_pod("bare").run(image=HOSTILE, env=env, annotations={"cdi.k8s.io/x": "vendor.example/gpu=0"})
    written = json.loads((containerd.bundle(container.id) / "config.json").read_text())["process"]["env"]
    values = [entry.partition("=")[2] for entry in written if entry.startswith(VISIBLE + "=")]
    print(containerd.cri.version(), values)
    if "1.7" not in containerd.cri.version():
        assert values[-1] == "void"
        assert [entry for entry in container.environ() if entry.startswith(VISIBLE)] == [f"{VISIBLE}=void"]
