"""The edit of a reserved mount, which each adapter makes or looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hook.core.base.compare import is_below
from hook.core.base.errors import named
from hook.core.container.oci import Mount
from hook.core.reserve.edits import SHOWN, Edit


class PlaceMount(Edit):
    """A reserved mount as the last one mounted at its path, or no mount at the path."""

    kind = "mount"
    may_be_secret = False  # paths
    volume: Sequence[Any] = ()
    """What an emptyDir needs, as in hook.core.policy.entries.Mount; () for another mount."""

    def __init__(
        self,
        rule: str,
        name: str,
        mount: Mount | None,
        *,
        companions: frozenset[str],
        before: list[Mount],
        origin: str = "",
        volumes_above: bool = False,
    ) -> None:
        super().__init__(rule, name, origin)
        self.mount = mount
        """The mount, None if nothing may be mounted."""
        self.companions = companions
        """Cleaned destinations of mounts that may come after it: the plan's other reserved mounts and the mounts that
        `allowBelow` allows. Every other mount at the path or below it is removed."""
        self.before = before
        """The mounts that are removed, and the mounts above it, which stay if `volumes_above`."""
        self.volumes_above = volumes_above

    def source(self) -> str:
        """The path on the node, "" if nothing may be mounted."""
        return self.mount.source if self.mount else ""

    def is_in_pods_directory(self) -> bool:
        """Whether it is an emptyDir on disk: it lies in kubelet's directory of pods, a volume of some."""
        return bool(self.volume) and self.volume[2] < 0

    def options(self) -> list[str]:
        """The mount(8) options."""
        return self.mount.options if self.mount else []

    def can_be_written(self) -> bool:
        """Whether a runtime that has made all mounts can make a file in this one.

        runc obeys `ro` at once, crun only `rro`, which a rule's directory has too (`Mount.as_oci`).
        """
        options = self.options()
        return self.mount is not None and ("ro" not in options or (self.origin != "" and "rro" not in options))

    def is_shared(self) -> bool:
        """Whether other containers may write there: they could remove another reserved mount that is below it."""
        return bool(self.volume) or ("rw" in self.options() and not self.origin)

    def displaces(self, path: str) -> bool:
        """Whether a mount at a cleaned path has to be removed."""
        return path == self.name or (is_below(path, self.name) and path not in self.companions)

    def in_place(self, mounts: list[Mount], displaced: list[int]) -> bool:
        """Whether config.json needs no edit for this mount.

        `mounts`: the container's mounts. `displaced`: indexes of those to remove.
        Only companions may come after the mount: by a link of the image, another path could lead to a place above it.
        """
        if self.mount is None or len(displaced) != 1 or mounts[displaced[0]] != self.mount:
            return not displaced and self.mount is None
        return all(
            mount.path in self.companions and not is_below(self.name, mount.path)
            for mount in mounts[displaced[0] + 1 :]
        )

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or ""."""
        others = sorted({mount.destination for mount in self.before if self.displaces(mount.path)})[:SHOWN]
        if not others:  # a mount above stays if `volumesAbove` allows it
            return ""
        return f"mount {named(self.name)} is reserved and {named(', '.join(others))} was mounted"

    def before_and_after(self) -> tuple[object, object]:
        """Destinations and sources of the mounts before; source and options of the reserved mount."""
        before = [mount.shown() for mount in self.before]
        return before, {"source": self.source(), "options": self.options()} if self.mount else None
