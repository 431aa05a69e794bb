"""Fixtures of the NRI tests: a containerd that knows NRI, with and without the second line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.node import Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import need, remove_tree, scratch

from e2e.cri.fixtures import evil, gpu_node, kubelet, node, runtime, start_pod
from e2e.cri.hostile import CA_BUNDLE
from e2e.cri.node import NRI_GENERATIONS, Containerd, Handler, running
from e2e.nri import recorder
from e2e.nri.plugin import Plugin

NRI_POLICY = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  exclude: {{namespaces: [kube-system]}}
  rules:
  - name: company-ca
    env:
    - {{name: REQUESTS_CA_BUNDLE, value: {CA_BUNDLE}}}
    mounts:
    - {{hostPath: CA, mountPath: /etc/ssl, readOnly: true}}
  - {{name: gpu, env: [{{name: NVIDIA_VISIBLE_DEVICES, value: void}}]}}
"""
"""`CA` is replaced by the scratch node's directory of CA files. NRI cannot remove env, so nothing has to be absent."""

StartPlugin = Callable[..., Plugin]

oldest = pytest.mark.parametrize("containerd", ["1.7"], indirect=True)
"""For tests of what reassert does only with the oldest containerd that knows NRI."""

__all__ = ["evil", "gpu_node", "kubelet", "node", "runtime", "start_pod"]


def second_line(node: Node) -> Callable[[dict[str, Any]], None]:
    """base_runtime_spec as an administrator sets it up: the reserved names, and the hook that looks."""

    def change(spec: dict[str, Any]) -> None:
        spec["process"]["env"] = [
            *spec["process"].get("env", []),
            f"REQUESTS_CA_BUNDLE={CA_BUNDLE}",
            "NVIDIA_VISIBLE_DEVICES=void",
        ]
        spec["hooks"] = {
            "createRuntime": [
                {
                    "path": str(REASSERT),
                    "args": ["reassert", "hook", "createRuntime", *node.options()],
                    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                    "timeout": 30,
                }
            ]
        }

    return change


@pytest.fixture(scope="session", params=["2.1"])
def containerd(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """A scratch node with a containerd. A test has the newest, where it does not say otherwise.

    It knows, for each real runtime X, the handlers

    X (with the second line), X-bare (NRI alone), X-open (like X; pods' annotations reach the OCI spec) and X-wrapped
    (with the wrapper, for tests that start no plugin). And `recorder`, of a shim that starts nothing.
    """
    generation = NRI_GENERATIONS[request.param]
    need(bool(generation.root and (generation.root / ".complete").exists()), f"{generation.root} (tests/roots.sh)")
    node = Node(scratch())
    handlers = [Handler("recorder", "", shim=recorder.RUNTIME_TYPE)]
    for name, real in RUNTIMES.items():
        handlers += [
            Handler(name, real, base_spec=second_line(node)),
            Handler(f"{name}-bare", real),
            Handler(f"{name}-open", real, open_to_pods=True, base_spec=second_line(node)),
            Handler(f"{name}-wrapped", node.dispatcher(real)),
        ]
    with running(node, generation, handlers) as containerd:
        yield containerd
    remove_tree(node.directory)


@pytest.fixture(scope="session")
def usual_policy() -> str:
    """What the node has unless a test says otherwise."""
    return NRI_POLICY


@pytest.fixture
def start_plugin(containerd: Containerd, node: Node) -> Iterator[StartPlugin]:
    """Starts `reassert nri` beside the containerd; takes its options. `within`: it has the containerd's CDI specs."""
    plugins: list[Plugin] = []

    def start(*options: str, within: bool = False) -> Plugin:
        beside = containerd.root.pid if within else 0
        plugins.append(Plugin(node, containerd.directory / "nri.sock", *options, beside=beside))
        return plugins[-1]

    yield start
    for plugin in plugins:
        plugin.close()
