"""What differs in gVisor: its kernel, the sentry, makes the mounts in memory of its own, where no hook can look.

So what its links would do is found out before the container starts, and the gofer, which opens files of the node for
the sentry, is confined to what the policy lets it open.
"""

from __future__ import annotations

import posix
from collections.abc import Callable, Iterable

from hook.core.base.compare import clean, is_below
from hook.core.base.errors import named
from hook.core.base.text import REASONS_LISTED
from hook.core.container.allocation import Allocation
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.linux import early, lookdevices, mountns, walk
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan
from hook.core.reserve.reserved_env import VISIBLE_GPUS

_MADE_BY_THE_SENTRY = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108  # of the container
"""The places at which gVisor mounts something of its own if config.json does not (runsc/boot/vfs.go)."""


def astray(
    rootfs: str,
    plan: Plan,
    *,
    allocations: list[Allocation],
    spec: Spec,
    still_waits: Callable[[], None] = lambda: None,
) -> list[Reason]:
    """Why a container must not start in gVisor's sentry, into which no hook can look.

    In the sentry, the last mount of config.json is not the one on top. The gofer resolves the links of bind mounts; the
    sentry makes all mounts by the length of their paths, the shortest first, and resolves the links of others by then
    (runsc/cmd/gofer.go, boot/vfs.go). So a mount is refused if a link leads it to a reserved one, or if it is in a
    volume, where another process can make such a link; with `volumesAbove`, only if the volume has one now.

    `allocations`: the container's: runsc --nvproxy and NVIDIA's hook give the GPUs that env asks for
    (runsc/specutils/nvidia.go). Raises Unacceptable, OSError.
    """
    if plan.exclusive is not None and not plan.env.owner(VISIBLE_GPUS):
        entries = [entry.partition("=")[2] for entry in spec.env if entry.partition("=")[0] == VISIBLE_GPUS]
        given = ["", "void", "none", *[allocation.env.get(VISIBLE_GPUS, "") for allocation in allocations]]
        exclusive = [*plan.exclusive.nodes.values(), *plan.exclusive.patterns]
        rules = [rule.name for rule, path in exclusive if path.startswith("/dev/nvidia")]
        if rules and not set(entries) <= set(given):
            message = (
                f"env {VISIBLE_GPUS} asks for devices that are exclusive, which gVisor or NVIDIA's hook would give"
            )
            return [Reason(rules[0], "device", message)]
    if plan.exclusive is not None:
        # runsc drops `nodev` of a read-only root.
        reasons = lookdevices.image_devices(rootfs, plan.exclusive, still_waits)
        if reasons:
            return reasons
    if not plan.mounts:
        return []
    root = posix.open(rootfs, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    walks = walk.Walks(root, walk.Steps(still_waits))
    try:
        ours = {edit: early.walked(walks, edit.name) for edit in plan.mounts}
        names = {edit.name for edit in ours if edit.mount}
        volumes = early.volumes_of(walks, spec, names, has_nodes_dev=True)
        reasons = []
        paths = {mount.path for mount in spec.mounts}
        implied = [path for path in _MADE_BY_THE_SENTRY if path not in paths]
        for written in [*[mount.destination for mount in spec.mounts], *implied]:
            place = early.walked(walks, clean(written))
            reason = _reason(written, place, ours=ours, volumes=volumes, walks=walks)
            if reason:
                reasons.append(reason)
                if len(reasons) == REASONS_LISTED:
                    break
        return reasons
    finally:
        walks.close()
        posix.close(root)


def _reason(
    written: str,
    place: walk.Place | None,
    *,
    ours: dict[PlaceMount, walk.Place | None],
    volumes: early.Volumes,
    walks: walk.Walks,
) -> Reason | None:
    """Why a mount makes it uncertain what the sentry has at a reserved path. `written`: its place in config.json."""
    path, first = clean(written), next(iter(ours))
    if place is None or ".." in written.split("/"):
        return Reason(first.rule, KIND, f"it is uncertain where mount {named(written)} leads in gVisor")
    for link in place.links:  # the gofer takes `..` out of the text of a target, and the sentry follows links first
        names = [name for name in (link.target or "").split("/") if name not in ("", ".")]
        if ".." in names[names.count("..") :]:  # behind another name
            message = (
                f"mount {named(path)} leads over a link to {named(str(link.target))}, which gVisor reads in two ways"
            )
            return Reason(first.rule, KIND, message)
    own = next((edit for edit in ours if edit.name == path), first)
    crossed = volumes.on(place)
    if crossed:
        has_link = early.leads_on(crossed, volumes, place=place, path=path, steps=walks.steps)
        if has_link or not all(edit.volumes_above for edit in ours):
            message = (
                f"mount {named(path)} is in the volume {named(str(crossed[0]))}, in which a link can lead it elsewhere"
            )
            advice = "" if has_link else "; volumesAbove: Allow permits it"
            return Reason(own.rule, KIND, f"{message}, and no hook can look into gVisor{advice}")
    directory, _, name = path.rpartition("/")
    upper = early.walked(walks, directory or "/")
    ends = {place.node, upper.node.below.get(name, place.node) if upper else place.node}  # Linux mounts on no link
    for edit, reserved in ours.items():
        if edit.name == path or reserved is None:
            continue
        if any(reserved.node in end.upwards() for end in ends):
            if path not in edit.companions or not is_below(path, edit.name):
                return Reason(edit.rule, KIND, f"mount {named(path)} leads into the reserved mount {named(edit.name)}")
        elif (edit.mount and (reserved.links or not is_below(edit.name, path))) and any(
            end in reserved.crossed or end in reserved.node.upwards() for end in ends
        ):
            return Reason(edit.rule, KIND, f"mount {named(path)} may hide the reserved mount {named(edit.name)}")
    return None


def missing(plan: Plan, spec: Spec) -> list[PlaceMount]:
    """The edits of mounts that config.json does not have as they should be: a hook comes too late for them.

    `astray` judges an unrelated mount behind a reserved one, as NRI sorts them.
    """

    def is_made(edit: PlaceMount) -> bool:
        mounts = [mount for mount in spec.mounts if edit.displaces(mount.path)]
        return mounts == ([edit.mount] if edit.mount else [])

    return [edit for edit in plan.edits if isinstance(edit, PlaceMount) and not is_made(edit)]


def confine(reserved: Iterable[Mount], has_devices: bool, before_mounting: Callable[[], None]) -> None:
    """Let the gofer, which the real runtime starts, write to no reserved read-only mount, and open no device.

    The gofer's bind mount of a reserved source is writable. `ro` belongs to an attachment in the sentry, and a volume
    that a link leads there has an attachment without it. The gofer has no device rules either: it opens device nodes of
    volumes and of the image. So this process, which becomes the real runtime, gets mounts of its own.

    `has_devices`: whether the policy decided about devices. Raises Undecided, Unacceptable, OSError.
    """
    read_only = [mount.source for mount in reserved if "ro" in mount.options]
    if read_only or has_devices:
        before_mounting()
        mountns.own_mounts(read_only, not has_devices)
