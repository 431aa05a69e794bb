"""Reserved env and mounts of device plugins and resource claims."""

from __future__ import annotations

from hook.core.base.compare import clean, is_below
from hook.core.container import oci
from hook.core.facts import Facts
from hook.core.policy.entries import BUILT_BY_THE_RUNTIME, EXCLUSIVE, Mount
from hook.core.policy.model import Rule
from hook.core.policy.sources import KEEP, Allocated, Env
from hook.core.reserve.reserved_env import SetEnv

VOLUMES_ABOVE = "volumesAbove"
"""The part of `deviceAllocations` that allows a mount of the container above a device plugin's read-only mount."""


_KINDS = {"env": "env", "mounts": "mount", VOLUMES_ABOVE: "mount", "devices": "device"}
"""By part of `deviceAllocations`: the kind of what it is about."""

_KINDS_OF_LISTS = {EXCLUSIVE: "device", "annotations": "annotation"}
"""The same by list of a rule."""


def kinds_of(rule: Rule) -> set[str]:
    """The kinds of what a rule reserves by what device plugins and claims gave (`Rule.uses_allocations`)."""
    kinds = {_KINDS[part] for part in rule.allocations}
    kinds |= {kind for field, kind in _KINDS_OF_LISTS.items() if rule.raw.get(field)}
    return kinds | ({SetEnv.kind} if True in [env.uses_allocations for env in rule.env] else set())


def env_of(facts: Facts) -> list[Env]:
    """Every env name that a device plugin or a resource claim set."""
    names = dict.fromkeys([*[name for a in facts.allocations for name in a.env], *facts.claimed_env])
    return [Allocated(name, {"default": KEEP}) for name in names]


def mounts_of(rule: Rule, facts: Facts) -> list[Mount]:
    """The mounts of device plugins and claims, each with the options that config.json has for it.

    A volume above a writable one is allowed: nothing in it is kept from the container, which may write there itself.
    """
    mounts = []
    for allocation in facts.given():
        for source, destination, how in allocation.mounts:
            path = clean(destination)
            if not any(path == tree or is_below(path, tree) for tree in BUILT_BY_THE_RUNTIME):
                options = how if isinstance(how, list) else ["rbind", "rprivate", "ro" if how else "rw"]
                above = VOLUMES_ABOVE in rule.allocations or {"ro", "rro"}.isdisjoint(options)
                mounts.append(Mount(source, path, options, [], False, above, origin=str(allocation)))
    return mounts


def as_engine_wrote(mount: Mount, mounts: list[oci.Mount]) -> oci.Mount | None:
    """The mount of the container with the same meaning as an allocated one, as the engine wrote it; None without it."""
    for other in mounts:
        if (
            other.path == mount.destination
            and other.source == mount.source
            and _same_options(other.options, mount.options)
        ):
            return other
    return None


def _same_options(one: list[str], other: list[str]) -> bool:
    """Whether mount options mean the same: engines order them differently, and docker omits `rw`."""
    return [o for o in one if o not in other and o != "rw"] == [o for o in other if o not in one and o != "rw"] == []
