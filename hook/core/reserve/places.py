"""Places of mounts that are refused: the runtime's trees, volumes above reserved mounts. Start path: builtins only."""

from hook.core.base.compare import is_below
from hook.core.base.errors import named
from hook.core.reserve.mounts import KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.reserve import Outcome
    from hook.core.reserve.mounts import Mount, OciMount, PlaceMount

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
        from hook.core.policy.missing_store import build_command

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
