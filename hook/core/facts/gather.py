"""Read what the rules that apply to a container need of the node. Part of the start path: builtins only."""

from hook.core.base.system import read_file
from hook.core.facts import Facts
from hook.core.facts.files import check_source, read_value
from hook.core.policy.entries import FILE
from hook.core.policy.model import AUDIT, Match, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.core.container.identity import Identity


def gather(
    policy: Policy, identity: "Identity", matches: "list[Match]", read: "Callable[[str, int], bytes]" = read_file
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `read`: reads kubelet's device checkpoint, and its record of resource claims.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if True in [rule.uses_allocations for rule in rules]:
        from hook.core.facts.allocated import gather_allocated

        gather_allocated(facts, policy, identity, rules, read)
    skipped: dict[str, str] = {}
    if policy.mode == AUDIT or True in [rule.tried for rule in rules]:
        from hook.core.facts.network_filesystems import untouched

        skipped = untouched(rules, facts)
    for rule in rules:
        for env in rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files | skipped:
                read_value(facts, env.text)
        for mount in rule.mounts:
            if mount.source and mount.source not in skipped:
                check_source(facts, mount.source)
    return facts
