"""Reserved mounts, compared with those in config.json; `hook.core.linux.look` looks at the real ones. Builtins only."""

from hook.core.base.compare import cleaned, is_below, parents
from hook.core.base.errors import named
from hook.core.reserve import EDITS, SHOWN, Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.plan import Container
    from hook.core.policy.model import Rule
    from hook.core.reserve.target import Editable

    OciMount = dict[str, object]
    from hook.core.reserve import Outcome

KIND = "mount"
PART = "mounts"
"""The part of `deviceAllocations` that reserves a device plugin's mounts."""


class Mount:
    """One reserved mount. `destination` and `allow_below` are cleaned paths; `options` are mount(8) options.

    `source`: path on the node; "": nothing may be mounted at the destination or below it. `allow_below`: the container
    may have mounts at these paths and below them. `skip_missing`: leave the mount out if the node has no such source.
    `volumes_above`: the container may have a mount above the destination. `around`: the destination and the paths
    above it. `below`: what paths below it begin with.
    """

    def __init__(
        self,
        source: str,
        destination: str,
        options: "list[str]",
        allow_below: "list[str]",
        skip_missing: bool,
        volumes_above: bool = False,
    ) -> None:
        self.source = source
        self.destination = destination
        self.options = options
        self.allow_below = allow_below
        self.skip_missing = skip_missing
        self.volumes_above = volumes_above
        self.around = {destination, *parents(destination)}
        self.below = destination.rstrip("/") + "/"

    def wanted(self) -> "tuple[str, frozenset[str]]":
        """What the rule wants at the destination, to be compared with what other rules want."""
        return self.source, frozenset(self.options)

    def as_oci(self, is_directory: bool = False) -> "OciMount":
        """The object for OCI's `mounts`.

        A directory also gets `rro`: crun obeys `ro` only after it has made all devices and mount points, of which a
        link in the image can lead some into the node's directory, but `rro` at once. crun 1.8.1 refuses it for a file.
        """
        options = [*self.options, "rro"] if is_directory and "ro" in self.options else list(self.options)
        return {"destination": self.destination, "type": "bind", "source": self.source, "options": options}


class PlaceMount(Edit):
    """A reserved mount as the last one mounted at its path, or no mount at the path.

    `mount`: the OCI object, None if nothing may be mounted. `companions`: cleaned destinations of mounts that may come
    after it: the plan's other reserved mounts and the mounts that `allowBelow` allows. Every other mount at the path or
    below it is removed. `before`: the mounts that are removed, and the mounts above it, which stay if `volumes_above`.
    """

    kind = KIND

    def __init__(
        self,
        rule: str,
        name: str,
        mount: "OciMount | None",
        companions: "frozenset[str]",
        before: "list[OciMount]",
        origin: str = "",
        volumes_above: bool = False,
    ) -> None:
        super().__init__(rule, name, origin)
        self.mount = mount
        self.companions = companions
        self.before = before
        self.volumes_above = volumes_above

    def source(self) -> str:
        """The path on the node, "" if nothing may be mounted."""
        return str(self.mount["source"]) if self.mount else ""

    def options(self) -> "list[str]":
        """The mount(8) options."""
        options = self.mount.get("options") if self.mount else None
        return [str(option) for option in options] if isinstance(options, list) else []

    def can_be_written(self) -> bool:
        """Whether a runtime that has made all mounts can make a file in this one.

        runc obeys `ro` at once, crun only `rro`, which a rule's directory has too (`Mount.as_oci`).
        """
        options = self.options()
        return self.mount is not None and ("ro" not in options or (self.origin != "" and "rro" not in options))

    def displaces(self, path: str) -> bool:
        """Whether a mount at a cleaned path has to be removed."""
        return path == self.name or (is_below(path, self.name) and path not in self.companions)

    def in_place(self, paths: "list[str]", there: "list[OciMount]", displaced: "list[int]") -> bool:
        """Whether config.json needs no edit for this mount.

        `there`: the container's mounts. `paths`: their cleaned destinations. `displaced`: indexes of those to remove.
        Only companions may come after the mount: another path could lead, by a link of the image, to a place above it.
        """
        if self.mount is None or len(displaced) != 1 or there[displaced[0]] != self.mount:
            return not displaced and self.mount is None
        return all(path in self.companions and not is_below(self.name, path) for path in paths[displaced[0] + 1 :])

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or ""."""
        if not self.before:
            return ""
        others = sorted({str(mount["destination"]) for mount in self.before[:SHOWN]})
        return f"mount {named(self.name)} is reserved and {named(', '.join(others))} was mounted"

    def before_and_after(self) -> "tuple[object, object]":
        """Destinations and sources of the mounts before; source and options of the reserved mount."""
        before = [{"destination": m["destination"], "source": m.get("source")} for m in self.before]
        return before, {"source": self.source(), "options": self.options()} if self.mount else None


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
            if mount.source not in container.facts.absent_sources:
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
    there = container.mounts  # of NRI only the destinations are decoded, until one is looked at
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
    devices = cleaned([str(device.get("path", "")) for device in container.devices]) if container.devices else []
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)) if len(wanted) > 1 else wanted:
        rule, mount, origin = wanted[path]
        edit = PlaceMount(rule.name, path, placed[path], companions, [], origin)
        edit.volumes_above = mount.volumes_above and all(m.volumes_above for m in rules_mounts if m.destination == path)
        upwards = parents(path) if near and mount.source else []
        above = [n for n, at in near if at in upwards and at not in wanted]
        displaced = [n for n, at in near if edit.displaces(at)]
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
            outcome.edits.append(edit)


def _near(mounts: "list[Mount]", paths: "list[str]") -> "list[tuple[int, str]]":
    """The paths at a reserved mount, above it or below it, each with its position. Few containers have one."""
    text = "".join(paths)
    if True not in [mount.below in text or not mount.around.isdisjoint(paths) for mount in mounts]:
        return []
    below = tuple([mount.below for mount in mounts])
    around: set[str] = set().union(*[mount.around for mount in mounts])
    return [(at, path) for at, path in enumerate(paths) if path in around or path.startswith(below)]


def apply(outcome: Outcome, target: "Editable") -> None:
    """Correct the mounts of `target`: remove those that have to go, and put reserved mounts last.

    Each reserved mount comes before its companions below it.
    """
    if not any(edit.kind == KIND for edit in outcome.edits):
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


BUILT_BY_THE_RUNTIME = ("/proc", "/sys", "/dev")
"""Trees in which nothing may be reserved: the runtime creates them, in part after all mounts, and a mount in them could
give the container control of the node (CVE-2019-16884, runc)."""


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
            outcome.deny(edit.rule, edit.kind, _shared_above(path, edit.name))
        elif edit.volumes_above and mount.get("type") in _NOTHING_MADE and not _has(mount, "bind", "rbind"):
            outcome.deny(edit.rule, edit.kind, _nothing_made(path, mount, edit.name))


def volume_above(volume: str, path: str) -> str:
    """The reason to refuse a volume above a reserved mount."""
    return (
        f"mount {named(volume)} is a volume above the reserved mount {named(path)}; others who "
        "write to the volume could remove the reserved mount (volumesAbove: Allow permits it)"
    )


def _shared_above(volume: str, path: str) -> str:
    """The reason to refuse a volume above a reserved mount if mounts in it appear on the node."""
    return (
        f"mount {named(volume)} is a volume above the reserved mount {named(path)}, which would appear on the node "
        "(mountPropagation: Bidirectional)"
    )


def _nothing_made(volume: str, mount: "OciMount", path: str) -> str:
    return (
        f"mount {named(volume)} is above the reserved mount {named(path)} and of type {named(str(mount['type']))}: no "
        "mount point can be made in it"
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
