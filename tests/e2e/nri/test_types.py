"""`containerTypes` through NRI, which has no type: kubelet is asked, as by the other adapters."""

from __future__ import annotations

from contextlib import closing

import marks
from harness.node import Node
from unit.podresources import PodResources, answer

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.kubelet import VISIBLE, visible
from e2e.cri.test_labels import BY_TYPE
from e2e.nri.conftest import StartPlugin


@marks.claim("container-types", "nri")
@one_runtime
def test_kubelet_alone_tells_app_containers_from_init_containers(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    root = node.directory / "kubelet"
    node.write_policy(BY_TYPE.format(root=root, excluded=""))
    start_plugin()
    pod = start_pod("bare")
    of = pod.config.metadata
    with closing(PodResources(root, answer(of.namespace, of.name, {"app": []}))):
        for name, gets in (("app", "void"), ("init", "none")):
            container = pod.run(name=name, env=[(VISIBLE, "all")])
            assert visible(container) == gets
