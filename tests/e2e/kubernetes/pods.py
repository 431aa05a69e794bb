"""The chart's pods, as kubelet starts them from what Helm renders."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.tools import cleaned
from unit.kubernetes.chart import find, objects

from e2e.cri.client import Cri, wait_for
from e2e.kubernetes.image import NAME
from e2e.kubernetes.kubelet import ConfigMapVolume, container_config, host_path, probe
from e2e.node.booted import BootedNode


def one_rule(rule: str) -> str:
    """A policy with one rule, which leaves kube-system alone."""
    head = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  exclude: {namespaces: [kube-system]}\n"
    return f"{head}  rules:\n  - {rule}\n"


POLICY = one_rule("{name: ca, env: [{name: REQUESTS_CA_BUNDLE, value: /etc/ca.pem}]}")


TOLD = ("done", "hold", "problem", "refused-*", "waiting")
"""What node.sh leaves in its directory; while nothing of it is there, a probe says only that it has not finished."""


EVERY = 2
"""Seconds between two looks of facts.sh."""


class NodePod:
    """Of the DaemonSet that wires nodes.

    `policy`: what the ConfigMap says. `nri`: whether the chart has the plugin's DaemonSet too. `fleet`: whether it
    writes the facts of the NodeEnforcement. `bundle`: that of `trust.configMap`. `audit`: `policy.audit`. `values`:
    `node`'s.
    """

    def __init__(
        self,
        node: BootedNode,
        policy: str = POLICY,
        state: str = "present",
        nri: bool = False,
        fleet: bool = False,
        bundle: dict[str, str] | None = None,
        audit: bool = False,
        **values: Any,
    ) -> None:
        self.node = node
        trust = {"configMap": "company-ca"} if bundle is not None else {}
        more = {"trust": trust, "policy": {"audit": audit}, "fleet": {"enabled": fleet}}
        found = objects({"node": values, "nri": {"enabled": nri}, **more})
        spec = find(found, "DaemonSet", "reassert-node")["spec"]["template"]["spec"]
        self._described = spec["containers"][0]
        assert self._described["name"] == "node"
        assert spec["hostPID"]
        self.pod = node.cri.run_pod("runc", namespace="kube-system", name="reassert-node", privileged=True)
        volumes = f"/var/lib/kubelet/pods/{self.pod.id}/volumes"
        self.policy = ConfigMapVolume(node.path(f"{volumes}/policy"))
        self.policy.write({"policy.yaml": policy})
        self._work = node.path(f"{volumes}/work")
        self._work.mkdir()
        self.bundle = ConfigMapVolume(node.path(f"{volumes}/trust"))
        self.bundle.write(bundle or {})
        paths = {name: f"{volumes}/{name}" for name in ("policy", "trust", "work")}
        config = container_config(self._described, NAME, paths, {"INTERVAL": "1", "STATE": state, "EVERY": str(EVERY)})
        self.container = self.pod.make(config)
        self.container.start()

    def ready(self) -> tuple[bool, str]:
        """Whether the readiness probe succeeds, and what it says."""
        return probe(self.container, self._described, "readinessProbe")

    def wait(self, ready: bool, why: str = "") -> None:
        """Until it is ready, or not for this reason. A probe runs `status`: one at each sign, and in four seconds."""
        looked: Any = None

        def as_wanted() -> bool:
            nonlocal looked
            told = sorted(path.name for name in TOLD for path in self._work.glob(name))
            signs = told, self.said(), time.monotonic() // 4
            if not told or signs == looked:
                return False
            looked = signs
            now, said = self.ready()
            assert why or " failed, see" not in said, self.said()  # it stays so
            return now is ready and why in said

        wait_for(as_wanted, f"ready {ready} {why}", lambda: f"{self.ready()}\n{self.said()}")

    def facts(self, holds: Callable[[Any], bool]) -> Any:
        """What report.sh would send, once something holds of it. A probe starts each look, of which EVERY has one."""
        found: Any = None
        looked = 0.0

        def as_wanted() -> bool:
            nonlocal found, looked
            if looked != (looked := time.monotonic() // EVERY):
                self.ready()
            facts = self._work / "facts.json"
            found = json.loads(facts.read_text()) if facts.exists() else None
            return found is not None and holds(found)

        wait_for(as_wanted, "facts", lambda: f"{found}\n{self.said()}")
        return found

    def state(self) -> str:
        """What report.sh reads of the last probe."""
        return (self._work / "state").read_text()

    def said(self) -> str:
        """Its log."""
        return self.container.log.read_text()

    def end(self) -> None:
        """As kubelet ends a pod."""
        cleaned("the node's pod", self.node.wait_for_cri)
        self.pod.remove()


class NriPod:
    """Of the DaemonSet that runs the NRI plugin. `at`: where an absolute path of the node is from here."""

    def __init__(self, cri: Cri, at: Callable[[str], Path]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:  # these pods have the network of the machine
            port = free.getsockname()[1]
        spec = find(objects({"nri": {"enabled": True}}), "DaemonSet", "reassert-nri")["spec"]["template"]["spec"]
        (self._described,) = spec["containers"]
        self.pod = cri.run_pod("runc", namespace="kube-system", name="reassert-nri")
        volumes = {volume["name"]: host_path(volume, at) for volume in spec["volumes"]}
        self.container = self.pod.make(container_config(self._described, NAME, volumes, {"METRICS_PORT": str(port)}))
        self.container.start()

    def probe(self, kind: str) -> bool:
        """Whether a probe succeeds."""
        return probe(self.container, self._described, kind)[0]

    def wait(self) -> None:
        """Until it is ready."""
        wait_for(lambda: self.probe("readinessProbe"), "readiness", self.said)

    def said(self) -> str:
        """Its log."""
        return self.container.log.read_text()

    def end(self) -> None:
        """As kubelet ends a pod."""
        self.pod.remove()
