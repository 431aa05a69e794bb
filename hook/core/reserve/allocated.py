"""Reserved env and mounts of device plugins and resource claims; env from files. For such rules; builtins only."""

from hook.core.base.compare import clean, is_below
from hook.core.container.allocation import Allocation
from hook.core.policy.entries import ALLOCATED, BUILT_BY_THE_RUNTIME, FILE, Env, Mount
from hook.core.reserve import Reserved, SetEnv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.facts import Container, Facts
    from hook.core.policy.model import Rule
    from hook.core.reserve import Outcome

    OciMount = dict[str, object]

VOLUMES_ABOVE = "volumesAbove"
"""The part of `deviceAllocations` that allows a mount of the container above a device plugin's mount."""


def env_of(facts: "Facts") -> "list[Env]":
    """Every env name that a device plugin or a resource claim set."""
    names = dict.fromkeys([*[name for a in facts.allocations for name in a.env], *facts.claimed_env])
    return [Env(name, ALLOCATED, keep=True) for name in names]


def env_value(
    rule: str, env: "Env", container: "Container", outcome: "Outcome", origins: "dict[str, str]"
) -> "tuple[str | None] | tuple[()]":
    """The value that is reserved for a name, None for absent; empty if nothing is reserved. Adds the name's origin."""
    facts, name = container.facts, env.name
    if env.source == FILE:
        path = str(env.text)
        if path in facts.files:
            return (facts.files[path],)
        reason = facts.unreadable.get(path, f"{path} was not read")
        outcome.cannot_tell(rule, SetEnv.kind, f"cannot tell the value of env {name}: {reason}")
        return ()
    if facts.allocation_problem:
        return ()  # plan() adds this error once for the whole rule
    set_by = [allocation for allocation in facts.allocations if name in allocation.env]
    claimed = _claimed_value(name, bool(set_by or name in facts.cdi_env), container)
    if claimed:
        origins[name] = claimed[1]
        return (claimed[0],)
    if not set_by and name not in facts.cdi_env:
        if env.trusted and facts.shared:
            from hook.core.facts.sharing import named_device

            there = _values(name, container)
            named = named_device(there[-1] if there else None, name, facts.shared)
            if named:
                origins[name] = named[1]
                return (named[0],)
        return () if env.keep else (env.text,)
    value = _allocated_value(name, set_by, container)
    if value is None:
        names = " and ".join(str(allocation) for allocation in set_by)
        outcome.deny(rule, SetEnv.kind, f"{names} set env {name} differently, and the container has neither value")
        return ()
    origins[name] = "; ".join(str(allocation) for allocation in set_by) or "CDI"
    return (value,)


def _claimed_value(name: str, allocated: bool, container: "Container") -> "tuple[str, str] | None":
    """The value that the CDI spec of a resource claim set, and the claim. None if the container has none of them.

    If it is not known which of the devices are the container's, process.env tells it. A CDI spec's value is the last
    entry of its name. `allocated`: a device plugin set the name for this container; then only the last entry shows that
    the claim's value is right.
    """
    claims = dict(container.facts.claimed_env.get(name, ()))
    there = _values(name, container) if claims else []
    for value in there[-1:] if allocated else reversed(there):
        if value is not None and value in claims:
            return value, claims[value]
    whole = [str(claim) for claim in container.facts.claims if claim.is_whole and not allocated]
    return next(((value, claim) for value, claim in reversed(claims.items()) if claim in whole), None)


def _values(name: str, container: "Container") -> "list[str | None]":
    """The container's values of a name, in order; None for an entry without `=`."""
    return [value for _, _, value in Reserved({name: None}, []).search(container.start.env)[1]]


def _allocated_value(name: str, set_by: "list[Allocation]", container: "Container") -> "str | None":
    """The allocated value. None if two plugins set different values and the container has neither.

    The env of a CDI spec comes after all other env: CDI's library appends it or, after its version 1.1.0, puts it in
    place of the last entry of the name. So if the last entry of the name holds one of the CDI values, that value is
    right. If two plugins set one name, kubelet takes either value; the first entry in process.env that holds one of
    them tells which.
    """
    there = _values(name, container)
    cdi = container.facts.cdi_env.get(name, [])
    if there and there[-1] in cdi:
        return there[-1]
    values = list(dict.fromkeys(allocation.env[name] for allocation in set_by))
    if len(values) > 1:
        return next((value for value in there if value in values), None)
    return values[0] if values else cdi[-1]


def mounts_of(rule: "Rule", facts: "Facts") -> "list[tuple[Mount, str]]":
    """The mounts of device plugins and claims, each with its origin and the options that config.json has for it."""
    mounts = []
    for allocation in facts.given():
        for source, destination, how in allocation.mounts:
            path = clean(destination)
            if not any(path == tree or is_below(path, tree) for tree in BUILT_BY_THE_RUNTIME):
                options = how if isinstance(how, list) else ["rbind", "rprivate", "ro" if how else "rw"]
                mount = Mount(source, path, options, [], False, VOLUMES_ABOVE in rule.allocations)
                mounts.append((mount, str(allocation)))
    return mounts


def as_engine_wrote(path: str, mount: Mount, there: "list[tuple[str, OciMount]]") -> "OciMount | None":
    """The mount of the container with the same meaning as an allocated one, as the engine wrote it; None without it."""
    for at, other in there:
        if at == path and other.get("source") == mount.source:
            options = other.get("options") or []
            if isinstance(options, list) and _same_options(options, mount.options):
                return other
    return None


def _same_options(one: "list[object]", other: "list[str]") -> bool:
    """Whether mount options mean the same: engines order them differently, and docker omits `rw`."""
    return [o for o in one if o not in other and o != "rw"] == [o for o in other if o not in one and o != "rw"] == []
