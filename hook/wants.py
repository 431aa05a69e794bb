"""What the rules that apply want of a container, and what stands in the way. Part of the start path: builtins only.

Rules add up. Two that want different things for one name or path refuse the container, naming both. What a device
plugin allocated is wanted like a rule's own entries, whoever the vendor is.
"""

from hook.container.model import Container
from hook.container.paths import clean, is_below, parents
from hook.edits import DropAnnotation, Edit, PlaceDevice, PlaceMount, SetEnv, values_of
from hook.policy.glob import glob_match
from hook.policy.model import DEVICES, ENV, KEEP, MOUNTS, Env, Mount, Rule
from hook.reserved import Reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.container.allocation import Allocation

_BUILT_BY_THE_RUNTIME = ("/proc", "/sys", "/dev")
"""Trees that no mount is put into; what kubelet mounted there stays as it is."""


class Denial:
    """A reason to refuse the container. `rule`: whose; "" where it is no rule's. `kind`: env, mount, or "" for all."""

    __slots__ = ("kind", "message", "rule")

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message


class Wants:
    """`edits` in the order in which they apply, `denials`, `errors`, and the `reserved` env."""

    __slots__ = ("_container", "_rules", "denials", "edits", "errors", "reserved")

    def __init__(self, rules: "list[Rule]", container: Container) -> None:
        self._rules = rules
        self._container = container
        self.edits: list[Edit] = []
        self.denials: list[Denial] = []
        self.errors: list[Denial] = []
        self.reserved = Reserved({}, [])
        problem = container.facts.allocation_problem
        if problem:
            self.errors = [Denial(rule.name, "", problem) for rule in rules if rule.uses_allocations()]
        self._env()
        self._mounts()
        self._devices()
        self._annotations()

    def _deny(self, rule: str, kind: str, message: str) -> None:
        self.denials.append(Denial(rule, kind, message))

    # -- env

    def _env(self) -> None:
        """An exact name beats a pattern."""
        owners: dict[str, str] = {}
        origins: dict[str, str] = {}
        denying: dict[str, str] = {}
        for rule in self._rules:
            for env in rule.env:
                if rule.deny:
                    denying.setdefault(env.name, rule.name)
                if not env.is_pattern():
                    self._want_env(rule, env, owners, origins)
                elif env.name not in self.reserved.absent:
                    self.reserved.absent.append(env.name)
                    owners[env.name] = rule.name
            if ENV in rule.allocations:
                for name in dict.fromkeys(name for allocation in self._allocations() for name in allocation.env):
                    if rule.deny:
                        denying.setdefault(name, rule.name)
                    self._want_env(rule, Env(name, KEEP, allocated=True), owners, origins)
        for edit in self.reserved.edits(self._container.env):
            exact = edit.name in self.reserved.values
            edit.rule = owners[edit.name if exact else self.reserved.owner(edit.name)]
            if isinstance(edit, SetEnv):
                edit.origin = origins.get(edit.name, "")
            self.edits.append(edit)
            asked = [name for name in denying if name == edit.name or (not exact and glob_match(name, edit.name))]
            if asked and edit.conflict():
                self._deny(denying[asked[0]], "env", edit.conflict())

    def _want_env(self, rule: Rule, env: Env, owners: "dict[str, str]", origins: "dict[str, str]") -> None:
        facts, name, value = self._container.facts, env.name, env.value
        if env.file is not None:
            if env.file not in facts.files:
                reason = facts.unreadable.get(env.file, f"{env.file} was not read")
                self.errors.append(Denial(rule.name, "env", f"cannot tell the value of env {name}: {reason}"))
                return
            value = facts.files[env.file]
        elif env.allocated:
            if facts.allocation_problem:
                return  # said once for the whole rule
            set_by = [allocation for allocation in self._allocations() if name in allocation.env]
            if set_by or name in facts.cdi_env:
                allocated = self._allocated_value(name, set_by)
                if allocated is None:
                    names = " and ".join(str(allocation) for allocation in set_by)
                    self._deny(rule.name, "env", f"{names} set env {name} differently, and neither value is there")
                    return
                value = allocated
                origins[name] = "; ".join(str(allocation) for allocation in set_by) or "CDI"
            elif value == KEEP:
                return
        values = self.reserved.values
        if name in values and values[name] != value:
            self._deny(rule.name, "env", f"wants another value for env {name} than rule {owners[name]}")
            return
        values[name] = value
        owners.setdefault(name, rule.name)

    def _allocated_value(self, name: str, set_by: "list[Allocation]") -> "str | None":
        """The value that was allocated, None where two plugins disagree and the container has neither's.

        containerd appends a CDI spec's env last, so one of its values that stands last is right. Of two plugins that
        set one name kubelet takes either; the first value in process.env that is one of theirs tells which.
        """
        there = values_of(self._container.env, name)
        cdi = self._container.facts.cdi_env.get(name, [])
        if there and there[-1] in cdi:
            return there[-1]
        values = list(dict.fromkeys(allocation.env[name] for allocation in set_by))
        if len(values) > 1:
            return next((value for value in there if value in values), None)
        return values[0] if values else cdi[-1]

    def _allocations(self) -> "list[Allocation]":
        return self._container.facts.allocations

    # -- mounts

    def _mounts(self) -> None:
        """Shallow before deep; everything at or below a reserved path goes, but for `allowBelow`."""
        wanted: dict[str, tuple[Rule, Mount, str]] = {}
        reserved: list[Mount] = []
        denying: dict[str, str] = {}
        for rule in self._rules:
            asked = [(mount, "") for mount in rule.mounts]
            if MOUNTS in rule.allocations:
                asked += [(mount, str(a)) for a in self._allocations() for mount in _allocated_mounts(a)]
            for mount, origin in asked:
                if rule.deny:
                    denying.setdefault(mount.destination, rule.name)
                if mount.source in self._container.facts.absent_sources:
                    if not mount.skip_missing:
                        missing = f"hostPath {mount.source} for mount {mount.destination} does not exist on this node"
                        self._deny(rule.name, "mount", missing)
                    continue
                reserved.append(mount)
                first = wanted.setdefault(mount.destination, (rule, mount, origin))
                if first[1] is not mount and not same_mount(first[1], mount):
                    other = f"rule {first[0].name}" if not origin or not first[2] else first[2]
                    self._deny(rule.name, "mount", f"wants another mount at {mount.destination} than {other}")
        if not wanted:
            return
        there = [(clean(str(mount["destination"])), mount) for mount in self._container.mounts]
        placed = {path: self._oci(path, mount, origin) for path, (_, mount, origin) in wanted.items() if mount.source}
        ours = list(placed.values())
        companions = frozenset(placed)
        if any(mount.allow_below for mount in reserved):
            companions = companions.union(path for path, _ in there if _is_let_through(path, reserved))
        for path in sorted(wanted, key=lambda path: (path.count("/"), path)):
            rule, mount, origin = wanted[path]
            above = parents(path) if mount.source else []
            below = path.rstrip("/") + "/"
            before = [
                other
                for at, other in there
                if (at == path or at in above or (at.startswith(below) and at not in companions)) and other not in ours
            ]
            edit = PlaceMount(rule.name, path, placed.get(path), companions, before, origin)
            if path in denying and edit.conflict():
                self._deny(denying[path], "mount", edit.conflict())
            if not edit.verify(self._container):
                self.edits.append(edit)

    def _oci(self, path: str, mount: Mount, origin: str) -> "dict[str, object]":
        """The mount as OCI has it; an allocated one as the engine wrote it, where that says the same."""
        for there in self._container.mounts if origin else []:
            if clean(str(there["destination"])) == path and there.get("source") == mount.source:
                options = there.get("options") or []
                if isinstance(options, list) and _same_options(options, mount.options):
                    return there
        return mount.as_oci()

    # -- devices and annotations

    def _devices(self) -> None:
        facts = self._container.facts
        wanted: dict[str, PlaceDevice] = {}
        for rule in self._rules:
            if DEVICES not in rule.allocations:
                continue
            for allocation in self._allocations():
                for host, inside, access in allocation.devices:
                    if host in facts.absent_sources:
                        self._deny(rule.name, "device", f"allocated device {host} does not exist on this node")
                        continue
                    node = facts.device_nodes.get(host)
                    if node is None:
                        continue  # a directory of devices: the engine's to expand
                    path = clean(inside)
                    device: dict[str, object] = {"path": path, **node}
                    before = [d for d in self._container.devices if clean(str(d.get("path", ""))) == path]
                    edit = PlaceDevice(rule.name, device, access or "rwm", before, str(allocation))
                    first = wanted.setdefault(path, edit)
                    if first.device != device:
                        self._deny(rule.name, "device", f"{allocation} and {first.origin} differ in {path}")
                    first.access = "".join(letter for letter in "rwm" if letter in first.access + edit.access)
                    if rule.deny and edit.conflict():
                        self._deny(rule.name, "device", edit.conflict())
        self.edits += [edit for edit in wanted.values() if not edit.verify(self._container)]

    def _annotations(self) -> None:
        """Keys that only a device plugin may set, unless one did, with this very value."""
        rules = [rule for rule in self._rules if rule.annotations]
        if not rules or self._container.facts.allocation_problem:
            return
        allocated = {key: value for allocation in self._allocations() for key, value in allocation.annotations.items()}
        for key, value in self._container.annotations.items():
            for rule in rules:
                if any(glob_match(name, key) for name in rule.annotations) and allocated.get(key) != value:
                    edit = DropAnnotation(rule.name, key, value)
                    self.edits.append(edit)
                    if rule.deny:
                        self._deny(rule.name, "annotation", edit.conflict())
                    break


def _allocated_mounts(allocation: "Allocation") -> "list[Mount]":
    """As kubelet and the engines turn a plugin's mounts into OCI's."""
    mounts = []
    for source, destination, read_only in allocation.mounts:
        path = clean(destination)
        if not any(path == tree or is_below(path, tree) for tree in _BUILT_BY_THE_RUNTIME):
            mounts.append(Mount(source, path, ["rbind", "rprivate", "ro" if read_only else "rw"], [], False))
    return mounts


def _same_options(one: "list[object]", other: "list[str]") -> bool:
    """Whether mount options mean the same: engines differ in their order, and docker leaves `rw` out."""
    return [o for o in one if o not in other and o != "rw"] == [o for o in other if o not in one and o != "rw"] == []


def _is_let_through(path: str, reserved: "list[Mount]") -> bool:
    """Whether every reserved mount above the path allows it; one that says nothing of it is as good as a no."""
    above = [mount for mount in reserved if is_below(path, mount.destination)]
    return bool(above) and all(
        any(path == root or is_below(path, root) for root in mount.allow_below) for mount in above
    )


def same_mount(one: Mount, other: Mount) -> bool:
    """Whether two reservations of one path ask for the same thing."""
    return one.source == other.source and set(one.options) == set(other.options)
