"""What a rule of the compiled policy reserves: entries of `mounts`, and of `deviceAllocations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hook.core.base.compare import is_below, parents

ALLOCATED_MOUNTS, ALLOCATED_DEVICES = "mounts", "devices"
"""The parts of `deviceAllocations` that reserve a device plugin's mounts and devices."""

EXCLUSIVE = "exclusive"
"""The part of `deviceAllocations` that lists the devices which only an allocation gives."""

BUILT_BY_THE_RUNTIME = ("/proc", "/sys", "/dev")
"""Trees in which nothing may be reserved: the runtime creates them, in part after all mounts, and a mount in them could
give the container control of the node (CVE-2019-16884, runc)."""


POD_UID = "$(pod.uid)"
"""A name in a hostPath in whose place the pod's UID is."""


class Mount:
    """One reserved mount."""

    def __init__(
        self,
        source: str,
        destination: str,
        options: list[str],
        allow_below: list[str],
        skip_missing: bool,
        volumes_above: bool = False,
        volume: Sequence[Any] = (),
        origin: str = "",
    ) -> None:
        self.source = source
        """A path on the node; "": nothing may be mounted at the destination or below it."""
        self.volume = volume
        """What an emptyDir needs, whose `source` is "" until the pod is known: kubelet's directory of pods, the name of
        the emptyDir, and the size of its tmpfs in bytes, 0 for the kernel's default, -1 for a directory on disk. Of a
        hostPath with POD_UID, whose `source` is "" likewise: this path alone."""
        self.destination = destination
        """The cleaned path in the container."""
        self.options = options
        """Options of mount(8)."""
        self.allow_below = allow_below
        """Cleaned paths at and below which the container may have mounts."""
        self.skip_missing = skip_missing
        """Whether the mount is left out if the node has no such source."""
        self.volumes_above = volumes_above
        """Whether the container may have a mount above the destination."""
        self.origin = origin
        """What allocated it, "" if the policy names it."""
        self.around = {destination, *parents(destination)}
        """The destination and the paths above it."""
        self.below = destination.rstrip("/") + "/"
        """What paths below it begin with."""

    @property
    def is_of_pod(self) -> bool:
        """Whether the policy names the hostPath with POD_UID, so each pod has its own."""
        return len(self.volume) == 1

    def of_pod(self, uid: str) -> Mount:
        """The mount of one pod; the same for one without POD_UID. `uid`: as in Identity.proven_uid; "": no pod's."""
        if not self.is_of_pod or not uid:
            return self
        source = self.volume[0].replace(POD_UID, uid)
        return Mount(source, self.destination, self.options, self.allow_below, self.skip_missing, self.volumes_above)

    def wanted(self) -> tuple[str, str, frozenset[str]]:
        """What the rule wants at the destination, to be compared with what other rules want."""
        return self.source, str(self.volume), frozenset(self.options)

    def as_oci(self, is_directory: bool = False) -> dict[str, object]:
        """The object for OCI's `mounts`.

        A directory also gets `rro`, which crun obeys at once. It obeys `ro` only after it has made all devices and
        mount points, and a link in the image can lead these into the node's directory. crun 1.8.1 refuses `rro` for a
        file.
        """
        options = [*self.options, "rro"] if is_directory and "ro" in self.options else list(self.options)
        return {"destination": self.destination, "type": "bind", "source": self.source, "options": options}


def is_let_through(path: str, reserved: list[Mount]) -> bool:
    """Whether each reserved mount above the path allows it in `allowBelow`; one without `allowBelow` allows nothing."""
    above = [mount for mount in reserved if is_below(path, mount.destination)]
    return bool(above) and all(
        any(path == root or is_below(path, root) for root in mount.allow_below) for mount in above
    )
