"""Reserved mounts, compared with those in config.json; `hook.core.linux.look` looks at the real ones."""

from __future__ import annotations

from hook.core.base.compare import is_below, parents
from hook.core.base.errors import named
from hook.core.container import oci
from hook.core.container.start import Start
from hook.core.facts import Container, Facts
from hook.core.policy import trust_layout
from hook.core.policy.entries import ALLOCATED_MOUNTS, Mount, is_let_through
from hook.core.policy.model import Rule
from hook.core.reserve import allocated, volumes
from hook.core.reserve.edits import EDITS
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan

KIND = "mount"


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether a rule reserves mounts."""
    return True in [bool(rule.mounts) or ALLOCATED_MOUNTS in rule.allocations for rule in rules]


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Collect the mounts that the rules reserve, and compare the container's mounts with them: upper paths first."""
    reserved: list[tuple[str, Mount]] = []
    denying: dict[str, str] = {}
    for rule in rules:
        wanted = list(rule.mounts)
        if ALLOCATED_MOUNTS in rule.allocations:
            wanted += allocated.mounts_of(rule, container.facts)
        for mount in wanted:
            if rule.deny:
                denying.setdefault(mount.destination, rule.name)
            here = volumes.of_pod(rule.name, mount, container.identity, plan) if mount.volume else mount
            if here is None:
                continue
            if here.volume or here.source not in container.facts.absent_sources:
                reserved.append((rule.name, here))
            else:
                without_source(rule.name, here, container.facts.unreadable.get(here.source, ""), plan)
    for path, (rule_name, destination, source) in container.facts.without_place.items():
        plan.deny(rule_name, KIND, no_place(path, destination, source))
    if reserved:
        _compare(reserved, denying, container, plan)
        _refuse_requests(reserved, container.start.mounts, plan)


_REQUESTS = "/var/run/nvidia-container-devices"
"""Where a mount of /dev/null asks NVIDIA's runtime for a device. It takes what follows this text in a destination,
behind a `/` or not, for the device's name (requestsFromMounts, internal/config/image/cuda_image.go)."""


def _refuse_requests(reserved: list[tuple[str, Mount]], mounts: list[oci.Mount], plan: Plan) -> None:
    """Refuse such a mount beside _REQUESTS, if nothing may be mounted there. Those below it are removed."""
    rules = [rule for rule, each in reserved if each.destination == _REQUESTS and not each.source and not each.volume]
    for mount in mounts if rules else ():
        if mount.path.startswith(_REQUESTS) and mount.path != _REQUESTS and not is_below(mount.path, _REQUESTS):
            asks = f"mount {named(mount.path)} asks NVIDIA's runtime for a device: it begins with {_REQUESTS}"
            plan.deny(rules[0], KIND, asks)
            return


def _compare(reserved: list[tuple[str, Mount]], denying: dict[str, str], container: Container, plan: Plan) -> None:
    """Compare the container's mounts with the reserved ones.

    `reserved`: each with the name of its rule. `denying`: by path, the rule that refuses a conflict.
    """
    mounts, facts = container.start.mounts, container.facts
    of_rules = [mount for _, mount in reserved]
    first = _first_at_each_path(reserved, plan)
    placed = {path: _placed(mount, mounts, facts) for path, (_, mount) in first.items()}
    ours = [mount for mount in placed.values() if mount]
    companions = _companions(placed, mounts, of_rules)
    near = _near(of_rules, [mount.path for mount in mounts])
    for path in sorted(first, key=lambda path: (path.count("/"), path)):
        rule, own = first[path]
        edit = PlaceMount(rule, path, placed[path], companions=companions, before=[], origin=own.origin)
        edit.volume = own.volume
        edit.volumes_above = all(mount.volumes_above for mount in of_rules if mount.destination == path)
        upwards = [each for each in parents(path) if each not in first] if near and edit.mount else []
        above = [number for number in near if mounts[number].path in upwards]
        displaced = [number for number in near if edit.displaces(mounts[number].path)]
        edit.before = [mounts[number] for number in sorted({*above, *displaced}) if mounts[number] not in ours]
        _refuse(
            edit,
            [mounts[number] for number in above],
            displaced=len(displaced),
            devices=container.start.devices,
            plan=plan,
        )
        if path in denying and edit.conflict():
            plan.deny(denying[path], KIND, edit.conflict())
        plan.mounts.append(edit)
        if edit.in_place(mounts, displaced):
            continue
        if displaced and not edit.before:  # it is the reserved mount already, but others come after it
            plan.reorders_mounts = True
        else:
            plan.edits.append(edit)


def _first_at_each_path(reserved: list[tuple[str, Mount]], plan: Plan) -> dict[str, tuple[str, Mount]]:
    """The first mount reserved at each path, with its rule. A later one that contradicts it refuses the container."""
    by_path: dict[str, tuple[str, Mount]] = {}
    for rule, mount in reserved:
        of, first = by_path.setdefault(mount.destination, (rule, mount))
        if first is not mount and first.wanted() != mount.wanted():
            other = first.origin if mount.origin and first.origin else f"rule {of}"
            plan.deny(rule, KIND, f"wants another mount at {mount.destination} than {other}")
    return by_path


def _placed(mount: Mount, mounts: list[oci.Mount], facts: Facts) -> oci.Mount | None:
    """The mount for config.json, None if nothing may be mounted. An allocated one stays as the engine wrote it."""
    if not mount.source:
        return None
    written = allocated.as_engine_wrote(mount, mounts) if mount.origin else None
    return written or oci.Mount(mount.as_oci(mount.source in facts.directories))


def _companions(placed: dict[str, oci.Mount | None], mounts: list[oci.Mount], reserved: list[Mount]) -> frozenset[str]:
    """Where a mount may be below a reserved one: the other reserved ones, and what `allowBelow` lets through."""
    destinations = frozenset([path for path, mount in placed.items() if mount])
    if not any(mount.allow_below for mount in reserved):
        return destinations
    return destinations.union([mount.path for mount in mounts if is_let_through(mount.path, reserved)])


def _refuse(edit: PlaceMount, above: list[oci.Mount], *, displaced: int, devices: list[oci.Device], plan: Plan) -> None:
    """Add the reasons to refuse the container for what is above a reserved mount, at it or below it."""
    shared = [upper.name for upper in plan.mounts if upper.is_shared() and is_below(edit.name, upper.name)]
    if shared and edit.mount and not edit.volumes_above:
        plan.deny(edit.rule, KIND, volume_above(shared[0], edit.name))
    if above:
        deny_above(edit, above, plan)
    if displaced > EDITS:
        plan.deny(edit.rule, KIND, f"more than {EDITS} mounts of the container are at {edit.name} or below it")
    made = [each.path for each in devices if each.path == edit.name or is_below(each.path, edit.name)]
    if made and edit.mount:
        plan.deny(edit.rule, KIND, f"device {named(made[0])} would be made in the reserved mount {named(edit.name)}")


def _near(reserved: list[Mount], paths: list[str]) -> list[int]:
    """The positions of the paths at a reserved mount, above it or below it. Few containers have one."""
    text = "".join(paths)
    if not any(mount.below in text or not mount.around.isdisjoint(paths) for mount in reserved):
        return []
    below = tuple([mount.below for mount in reserved])
    around: set[str] = set().union(*[mount.around for mount in reserved])
    return [number for number, path in enumerate(paths) if path in around or path.startswith(below)]


def apply(plan: Plan, target: Start) -> None:
    """Correct the mounts of `target`: remove those that have to go, and put reserved mounts last.

    Each reserved mount comes before its companions below it.
    """
    if not plan.reorders_mounts and not any(edit.kind == KIND for edit in plan.edits):
        return
    names = [edit.name for edit in plan.mounts]
    prefixes = tuple(name.rstrip("/") + "/" for name in names)
    stay: list[oci.Mount] = []
    on_top: dict[str, list[oci.Mount]] = {name: [] for name in names}
    for mount in target.mounts:
        path = mount.path
        if path in on_top:
            continue
        if not path.startswith(prefixes):
            stay.append(mount)
        elif all(path in edit.companions for edit in plan.mounts if is_below(path, edit.name)):
            on_top[max((name for name in names if is_below(path, name)), key=len)].append(mount)
    for edit in plan.mounts:
        stay += [*([edit.mount] if edit.mount else []), *on_top[edit.name]]
    target.mounts = stay


_SHARED = frozenset(("shared", "rshared"))
"""Options of a mount on which another mount appears on the node too."""

_NOTHING_MADE = ("proc", "sysfs", "devpts")
"""File systems in which no mount point can be made."""


def without_source(rule: str, mount: Mount, problem: str, plan: Plan) -> None:
    """Add the reason to refuse a container if the node lacks a hostPath; none with `skip_missing`.

    `problem`: why the hostPath cannot be looked at, or "". Whether to skip it is then unknown: `failurePolicy` decides.
    """
    mounted = f"hostPath {mount.source} for mount {mount.destination}"
    if problem:
        tell = plan.cannot_tell if mount.skip_missing else plan.deny
        tell(rule, KIND, f"{mounted} cannot be looked at: {problem}")
    elif not mount.skip_missing:
        command = trust_layout.build_command(mount.source)
        missing = f"{mounted} does not exist on this node"
        plan.deny(rule, KIND, f"{missing}; run there: {command}" if command else missing)


def no_place(path: str, reserved: str, source: str) -> str:
    """The reason to refuse a container with a mount that has no mount point in a read-only reserved directory."""
    text = f"mount {named(path)} has no place in the reserved mount {named(reserved)}, which is read-only"
    if trust_layout.store_of(source):
        return f"{text}: a trust store has only its own files; mount it at another path"
    return f"{text}: make {named(path[len(reserved) :].lstrip('/'))}, an empty file or directory, in {source}"


def deny_above(edit: PlaceMount, above: list[oci.Mount], plan: Plan) -> None:
    """Add the reasons to refuse a container for its mounts above a reserved one."""
    if not edit.volumes_above:
        plan.deny(edit.rule, edit.kind, volume_above(above[0].path, edit.name))
    for mount in above:
        if not _SHARED.isdisjoint(mount.options):
            text = f"mount {named(mount.path)} is a volume above the reserved mount {named(edit.name)}"
            why = "which would appear on the node (mountPropagation: Bidirectional)"
            plan.deny(edit.rule, edit.kind, f"{text}, {why}")
        elif edit.volumes_above and mount.type in _NOTHING_MADE and not mount.is_bind:
            text = f"mount {named(mount.path)} is above the reserved mount {named(edit.name)} and of type"
            why = f"{named(mount.type)}: no mount point can be made in it"
            plan.deny(edit.rule, edit.kind, f"{text} {why}")


def volume_above(volume: str, path: str) -> str:
    """The reason to refuse a volume above a reserved mount."""
    return (
        f"mount {named(volume)} is a volume above the reserved mount {named(path)}; others who "
        "write to the volume could remove the reserved mount (volumesAbove: Allow permits it)"
    )
