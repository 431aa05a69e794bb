"""A node with a device checkpoint of kubelet, and decisions about its containers as an adapter makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hook.core.container.identity import Identity
from hook.core.container.spec import Spec
from hook.core.decide import Adapter
from hook.core.facts import Container
from hook.core.facts.gather import gather
from hook.core.plan import Plan, plan
from hook.core.policy.model import select
from unit.kubelet import entry, write_checkpoint
from unit.support import POD, config, policy

UID, NAME = POD.uid or "", POD.container or ""


def ours(*ids: str, **answer: Any) -> dict[str, Any]:
    """An entry of the checkpoint for the container of the identity POD."""
    return entry(UID, NAME, *(ids or ("GPU-4",)), **answer)


class KubeletNode:
    """A policy with a temporary directory as kubelet's root."""

    def __init__(self, root: Path, *rules: dict[str, Any], **spec: Any) -> None:
        self.root = root
        self.policy = policy(*rules, **{"kubelet": {"root": str(root)}, **spec})

    def allocate(self, *entries: dict[str, Any]) -> Path:
        """Write the checkpoint."""
        return write_checkpoint(self.root, *entries)

    def decide(self, spec: Spec, identity: Identity = POD) -> Plan:
        """What would be done about a container."""
        matches = select(self.policy, identity)
        facts = gather(Adapter(), self.policy, identity, matches)
        if facts.devices is not None:
            facts.devices.add_sources(spec.mounts)
        container = Container(identity, spec, facts)
        return plan(self.policy, container, matches)

    def correct(self, spec: Spec, identity: Identity = POD) -> Spec:
        """The container as the real runtime finds it; planned a second time, nothing is left to do."""
        decided = self.decide(spec, identity)
        assert decided.refusal() == ""
        decided.apply(spec)
        corrected = Spec(spec.render(), "config.json")
        assert self.decide(corrected, identity).is_empty()
        return corrected

    def env(self, *env: str, identity: Identity = POD) -> list[str]:
        """The env that a container gets instead of this one."""
        return self.correct(spec(env=list(env)), identity).env


def spec(**fields: Any) -> Spec:
    """A config.json with linux.devices and linux.resources.devices in it, read."""
    linux = {
        "cgroupsPath": fields.pop("cgroupsPath", ""),
        "devices": fields.pop("devices", []),
        "resources": {"devices": fields.pop("device_rules", [])},
    }
    return Spec(json.dumps(config(**fields, linux=linux)).encode(), "config.json")
