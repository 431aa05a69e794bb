"""Reserved mounts, compared with those in config.json; `hook.core.linux.look` looks at the real ones. Builtins only."""

from hook.core.base.compare import cleaned, is_below, parents
from hook.core.base.errors import named
from hook.core.reserve import EDITS, Outcome, PlaceMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.policy.entries import Mount
    from hook.core.policy.model import Rule

    OciMount = dict[str, object]

KIND = "mount"
PART = "mounts"
"""The part of `deviceAllocations` that reserves a device plugin's mounts."""


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Collect the mounts that the rules reserve, and compare the container's mounts with them: upper paths first."""
    reserved: list[tuple[Rule, Mount, str]] = []
    denying: dict[str, str] = {}
    for rule in rules:
        asked = [(mount, "") for mount in rule.mounts]
        if PART in rule.allocations:
            from hook.core.reserve.allocated import mounts_of

            asked += mounts_of(rule, container.facts)
        for mount, origin in asked:
            if rule.deny:
                denying.setdefault(mount.destination, rule.name)
            if mount.volume:
                from hook.core.reserve.volumes import of_pod  # few policies have one

                volume = of_pod(rule.name, mount, container.identity, outcome)
                if volume:
                    reserved.append((rule, volume, origin))
            elif mount.source not in container.facts.absent_sources:
                reserved.append((rule, mount, origin))
            else:
                without_source(rule.name, mount, container.facts.unreadable.get(mount.source, ""), outcome)
    if reserved:
        _compare(reserved, denying, container, outcome)


def _compare(
    reserved: "list[tuple[Rule, Mount, str]]", denying: "dict[str, str]", container: "Container", outcome: Outcome
) -> None:
    """Compare the container's mounts with the reserved ones. `denying`: by path, the rule that refuses a conflict."""
    wanted: dict[str, tuple[Rule, Mount, str]] = {}
    for rule, mount, origin in reserved:
        first = wanted.setdefault(mount.destination, (rule, mount, origin))
        if first[1] is not mount and first[1].wanted() != mount.wanted():
            other = f"rule {first[0].name}" if not origin or not first[2] else first[2]
            outcome.deny(rule.name, KIND, f"wants another mount at {mount.destination} than {other}")
    rules_mounts = [mount for _, mount, _ in reserved]
    there = container.start.mounts  # of NRI's mounts, only the destinations are decoded until one is needed
    paths = cleaned(getattr(there, "destinations", None) or [str(mount["destination"]) for mount in there])
    placed: dict[str, OciMount | None] = {}
    for path, (_, mount, origin) in wanted.items():
        placed[path] = mount.as_oci(mount.source in container.facts.directories) if mount.source else None
        if origin and mount.source:
            from hook.core.reserve.allocated import as_engine_wrote

            placed[path] = as_engine_wrote(path, mount, [*zip(paths, there)]) or placed[path]  # noqa: B905  # one each
    ours = [mount for mount in placed.values() if mount]
    companions = frozenset(path for path, mount in placed.items() if mount)
    if True in [bool(mount.allow_below) for mount in rules_mounts]:
        companions = companions.union(path for path in paths if is_let_through(path, rules_mounts))
    near = _near(rules_mounts, paths)
    devices = cleaned([str(device.get("path", "")) for device in container.start.devices])
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)) if len(wanted) > 1 else wanted:
        rule, mount, origin = wanted[path]
        edit = PlaceMount(rule.name, path, placed[path], companions, [], origin)
        edit.volume = mount.volume
        edit.volumes_above = mount.volumes_above and all(m.volumes_above for m in rules_mounts if m.destination == path)
        upwards = parents(path) if near and mount.source else []
        above = [n for n, at in near if at in upwards and at not in wanted]
        displaced = [n for n, at in near if edit.displaces(at)]
        shared = [upper.name for upper in outcome.mounts if upper.is_shared() and is_below(path, upper.name)]
        if shared and mount.source and not edit.volumes_above:
            outcome.deny(rule.name, KIND, volume_above(shared[0], path))
        if above:
            deny_above(edit, [(paths[n], there[n]) for n in above], outcome)
        if len(displaced) > EDITS:
            outcome.deny(rule.name, KIND, f"more than {EDITS} mounts of the container are at {path} or below it")
        edit.before = [there[n] for n in sorted({*above, *displaced}) if there[n] not in ours]
        made = [at for at in devices if mount.source and (at == path or is_below(at, path))]
        if made:
            outcome.deny(rule.name, KIND, f"device {named(made[0])} would be made in the reserved mount {named(path)}")
        if path in denying and edit.conflict():
            outcome.deny(denying[path], KIND, edit.conflict())
        outcome.mounts.append(edit)
        if not edit.in_place(paths, there, displaced):
            moves = displaced and not edit.before  # it is the reserved mount already, but others come after it
            outcome.moves = outcome.moves or bool(moves)
            outcome.edits += [] if moves else [edit]


def _near(mounts: "list[Mount]", paths: "list[str]") -> "list[tuple[int, str]]":
    """The paths at a reserved mount, above it or below it, each with its position. Few containers have one."""
    text = "".join(paths)
    if True not in [mount.below in text or not mount.around.isdisjoint(paths) for mount in mounts]:
        return []
    below = tuple([mount.below for mount in mounts])
    around: set[str] = set().union(*[mount.around for mount in mounts])
    return [(at, path) for at, path in enumerate(paths) if path in around or path.startswith(below)]


def apply(outcome: Outcome, target: "Start") -> None:
    """Correct the mounts of `target`: remove those that have to go, and put reserved mounts last.

    Each reserved mount comes before its companions below it.
    """
    if not outcome.moves and not any(edit.kind == KIND for edit in outcome.edits):
        return
    names = [edit.name for edit in outcome.mounts]
    prefixes = tuple(name.rstrip("/") + "/" for name in names)
    stay: list[OciMount] = []
    on_top: dict[str, list[OciMount]] = {name: [] for name in names}
    for path, mount in zip(cleaned([str(m["destination"]) for m in target.mounts]), target.mounts):  # noqa: B905  # one each
        if path in on_top:
            continue
        if not path.startswith(prefixes):
            stay.append(mount)
        elif all(path in edit.companions for edit in outcome.mounts if is_below(path, edit.name)):
            on_top[max((name for name in names if is_below(path, name)), key=len)].append(mount)
    for edit in outcome.mounts:
        stay += [*([edit.mount] if edit.mount else []), *on_top[edit.name]]
    target.mounts = stay


_NOTHING_MADE = ("proc", "sysfs", "devpts")
"""File systems in which no mount point can be made."""


def without_source(rule: str, mount: "Mount", problem: str, outcome: "Outcome") -> None:
    """Add the reason to refuse a container if the node lacks a hostPath; none with `skip_missing`.

    `problem`: why the hostPath cannot be looked at, or "". Whether to skip it is then unknown: `failurePolicy` decides.
    """
    what = f"hostPath {mount.source} for mount {mount.destination}"
    if problem:
        tell = outcome.cannot_tell if mount.skip_missing else outcome.deny
        tell(rule, KIND, f"{what} cannot be looked at: {problem}")
    elif not mount.skip_missing:
        from hook.core.policy.trust_layout import build_command

        command = build_command(mount.source)
        missing = f"{what} does not exist on this node"
        outcome.deny(rule, KIND, f"{missing}; run there: {command}" if command else missing)


def deny_above(edit: "PlaceMount", above: "list[tuple[str, OciMount]]", outcome: "Outcome") -> None:
    """Add the reasons to refuse a container for its mounts above a reserved one, by their cleaned destinations."""
    if not edit.volumes_above:
        outcome.deny(edit.rule, edit.kind, volume_above(above[0][0], edit.name))
    for path, mount in above:
        if _has(mount, "shared", "rshared"):
            what = f"mount {named(path)} is a volume above the reserved mount {named(edit.name)}"
            why = "which would appear on the node (mountPropagation: Bidirectional)"
            outcome.deny(edit.rule, edit.kind, f"{what}, {why}")
        elif edit.volumes_above and mount.get("type") in _NOTHING_MADE and not _has(mount, "bind", "rbind"):
            what = f"mount {named(path)} is above the reserved mount {named(edit.name)} and of type"
            why = f"{named(str(mount['type']))}: no mount point can be made in it"
            outcome.deny(edit.rule, edit.kind, f"{what} {why}")


def volume_above(volume: str, path: str) -> str:
    """The reason to refuse a volume above a reserved mount."""
    return (
        f"mount {named(volume)} is a volume above the reserved mount {named(path)}; others who "
        "write to the volume could remove the reserved mount (volumesAbove: Allow permits it)"
    )


def _has(mount: "OciMount", *any_of: str) -> bool:
    options = mount.get("options")
    return isinstance(options, list) and any(option in options for option in any_of)


def is_let_through(path: str, reserved: "list[Mount]") -> bool:
    """Whether each reserved mount above the path allows it in `allowBelow`; one without `allowBelow` allows nothing."""
    above = [mount for mount in reserved if is_below(path, mount.destination)]
    return bool(above) and all(
        any(path == root or is_below(path, root) for root in mount.allow_below) for mount in above
    )
