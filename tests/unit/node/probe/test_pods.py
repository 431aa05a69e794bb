"""What is asked of an engine to get rid of a probe. Real pods are in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hook.node.probe.cri import READY, CallFailed, message
from hook.node.probe.pods import PodStarter
from hook.node.probe.starter import NotStarted


def test_a_probe_has_what_kubelet_sends() -> None:
    """CRI-O identifies containers by kubelet's labels, and checks signatures of the image that a user named."""
    starter = PodStarter("cri-o", "/none", "pause:1", systemd=True, namespace="team")
    starter._ready = True
    asked: dict[str, Any] = {}

    def answer(method: str, **fields: Any) -> Any:
        message(f"{method}Request", **fields)
        asked[method] = fields
        if method == "CreateContainer":
            raise CallFailed("enough")
        return SimpleNamespace(pod_sandbox_id="s", items=[SimpleNamespace(id="s", state=READY, labels={})])

    starter._cri = SimpleNamespace(call=answer)  # type: ignore[assignment]  # a stand-in
    with pytest.raises(NotStarted, match="enough"):
        starter.start("")
    who = starter.identity
    labels = {
        "io.kubernetes.pod.namespace": "team",
        "io.kubernetes.pod.name": who.pod,
        "io.kubernetes.pod.uid": who.uid,
    }
    assert labels.items() <= asked["RunPodSandbox"]["config"]["labels"].items()
    container = asked["CreateContainer"]["config"]
    assert container["labels"] == {**labels, "io.kubernetes.container.name": who.container}
    assert container["image"] == {"image": "pause:1", "user_specified_image": "pause:1"}
