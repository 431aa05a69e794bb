"""A rule in Audit mode beside enforced ones, with the plugin and with the hook behind it."""

from __future__ import annotations

import marks
from harness.node import Node

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.kubelet import visible
from e2e.nri.conftest import StartPlugin

pytestmark = [
    one_runtime,
    marks.promise(
        "A rule in Audit mode beside enforced rules changes nothing that these decide, and its hostPath that "
        "hangs delays no container"
    ),
]

TRIED = """\
  - name: tried
    mode: Audit
    onConflict: Deny
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: PATH, absent: true}
    mounts:
    - {hostPath: /usr, mountPath: /etc/ssl, readOnly: false}
"""


def test_plugin_asks_for_the_enforced_edits_alone(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    node.write_policy(node.policy.read_text() + TRIED)
    start_plugin()
    pod = start_pod("bare")
    assert visible(pod.run()) == "void"
    told = [event for event in node.logged() if event.get("tried")]
    assert told
    assert not [event for event in node.logged() if event["event"] == "container.denied"]
    [first] = [event for event in told if event["adapter"] == "nri"]
    assert {edit["rule"] for edit in first["edits"] if "mode" not in edit} <= {"company-ca", "gpu"}
    assert "wants another value for env NVIDIA_VISIBLE_DEVICES than rule gpu" in str(first["denials"])
