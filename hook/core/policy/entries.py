"""What a rule of the compiled policy reserves: entries of `env` and `mounts`. Part of the start path: builtins only."""

from hook.core.base.compare import is_pattern, parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

VALUE, FILE, ALLOCATED, ABSENT = "value", "file", "allocated", "absent"
KEEP = "Keep"
"""The `default` of a `deviceAllocation` that leaves the name unchanged if no device plugin set it."""

EXCLUSIVE = "exclusive"
"""The part of `deviceAllocations` that lists the devices which only an allocation gives."""

BUILT_BY_THE_RUNTIME = ("/proc", "/sys", "/dev")
"""Trees in which nothing may be reserved: the runtime creates them, in part after all mounts, and a mount in them could
give the container control of the node (CVE-2019-16884, runc)."""


class Env:
    """One reserved env name. `source` says what `text` is.

    VALUE: `text` is the value. FILE: `text` is the path of a file whose first line is the value. ALLOCATED: `text` is
    the default if no device plugin set the name, None for absent; with `keep` the name is left unchanged instead;
    `trusted`: as in the policy file. ABSENT: `text` is None, and `name` may be a pattern.
    """

    def __init__(
        self, name: str, source: str, text: "str | None" = None, keep: bool = False, trusted: "Sequence[Any]" = ()
    ) -> None:
        self.name = name
        self.source = source
        self.text = text
        self.keep = keep
        self.trusted = trusted

    def is_pattern(self) -> bool:
        """Whether `name` is a pattern of names that must be absent."""
        return self.source == ABSENT and is_pattern(self.name)


class Mount:
    """One reserved mount. `destination` and `allow_below` are cleaned paths; `options` are mount(8) options.

    `source`: path on the node; "": nothing may be mounted at the destination or below it. `allow_below`: the container
    may have mounts at these paths and below them. `skip_missing`: leave the mount out if the node has no such source.
    `volumes_above`: the container may have a mount above the destination. `volume`: of an emptyDir, whose `source` is
    "" until the pod is known: kubelet's directory of pods, the emptyDir's name, and the size of its tmpfs in bytes, 0
    for the kernel's default, -1 for a directory on disk. `around`: the destination and the paths above it. `below`:
    what paths below it begin with.
    """

    def __init__(
        self,
        source: str,
        destination: str,
        options: "list[str]",
        allow_below: "list[str]",
        skip_missing: bool,
        volumes_above: bool = False,
        volume: "Sequence[Any]" = (),
    ) -> None:
        self.source = source
        self.volume = volume
        self.destination = destination
        self.options = options
        self.allow_below = allow_below
        self.skip_missing = skip_missing
        self.volumes_above = volumes_above
        self.around = {destination, *parents(destination)}
        self.below = destination.rstrip("/") + "/"

    def wanted(self) -> "tuple[str, str, frozenset[str]]":
        """What the rule wants at the destination, to be compared with what other rules want."""
        return self.source, str(self.volume), frozenset(self.options)

    def as_oci(self, is_directory: bool = False) -> "dict[str, object]":
        """The object for OCI's `mounts`.

        A directory also gets `rro`, which crun obeys at once. It obeys `ro` only after it has made all devices and
        mount points, and a link in the image can lead these into the node's directory. crun 1.8.1 refuses `rro` for a
        file.
        """
        options = [*self.options, "rro"] if is_directory and "ro" in self.options else list(self.options)
        return {"destination": self.destination, "type": "bind", "source": self.source, "options": options}
