"""Read what the rules that apply to a container need of the node."""

from __future__ import annotations

from hook.core.container.identity import Identity
from hook.core.facts import Facts, NodeAccess, allocated, files, network_filesystems
from hook.core.policy.model import AUDIT, Match, Policy


def gather(
    node: NodeAccess, policy: Policy, identity: Identity, matches: list[Match], *, container_id: str = ""
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `container_id`: in the engine.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if True in [rule.uses_allocations for rule in rules]:
        allocated.gather_allocated(facts, node, policy, identity=identity, rules=rules, container_id=container_id)
    skipped: dict[str, str] = {}
    if policy.mode == AUDIT or True in [rule.is_audited for rule in rules]:
        skipped = network_filesystems.untouched(rules, facts)
    for rule in rules:
        for env in rule.env:
            for path in env.files:
                if path not in facts.files | skipped:
                    files.read_value(facts, path)
        for mount in [mount.of_pod(identity.proven_uid) for mount in rule.mounts]:
            if mount.source and mount.source not in skipped:
                files.check_source(facts, mount.source)
    return facts
