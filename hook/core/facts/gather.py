"""Read what the rules that apply to a container need of the node. Part of the start path: builtins only."""

import posix

from hook.core.base.errors import describe
from hook.core.base.system import is_directory, is_shortage, read_file
from hook.core.facts import Facts
from hook.core.policy.entries import FILE
from hook.core.policy.model import AUDIT, Match, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.core.container.identity import Identity
    from hook.core.facts.cri import Ask


def gather(
    policy: Policy,
    identity: "Identity",
    matches: "list[Match]",
    read: "Callable[[str, int], bytes]" = read_file,
    asks: "tuple[str, Ask | None]" = ("", None),
    container_id: str = "",
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `read`: reads kubelet's device checkpoint, and its record of resource claims. `asks`, `container_id`:
    as in hook.core.decide.Case, with an empty name of the store if no engine is asked.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if True in [rule.uses_allocations for rule in rules]:
        from hook.core.facts.allocated import gather_allocated

        gather_allocated(facts, policy, identity, rules, read, check_source, asks, container_id)
    skipped: dict[str, str] = {}
    if policy.mode == AUDIT or True in [rule.is_audited for rule in rules]:
        from hook.core.facts.network_filesystems import untouched

        skipped = untouched(rules, facts)
    for rule in rules:
        for env in rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files | skipped:
                from hook.core.facts.files import read_value

                read_value(facts, env.text)
        for mount in rule.mounts:
            if mount.source and mount.source not in skipped:
                check_source(facts, mount.source)
    return facts


def check_source(facts: Facts, source: str) -> None:
    """Note whether a hostPath is a directory, or missing; if that is not certain, why it cannot be looked at.

    Raises OSError for a shortage.
    """
    try:
        if is_directory(posix.stat(source)):
            facts.directories.add(source)
    except OSError as error:
        if is_shortage(error):
            raise
        facts.absent_sources.add(source)
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            facts.unreadable[source] = describe(error)
