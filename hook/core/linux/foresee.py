"""What a look into a container would find in Enforce mode: the look of Audit mode, which changes nothing.

The container has its mounts and devices as its author asked for them. The look at the mounts is that of Enforce mode
(hook.core.linux.look.View): what Enforce mode removes does not count for it, and what it mounts is there for it.
"""

from __future__ import annotations

import posix
from collections.abc import Callable, Sequence

from hook.core.base.errors import ReassertError, Unacceptable
from hook.core.base.mountinfo import Row, descendants, mount_table
from hook.core.base.system import is_shortage
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.linux import lookdevices
from hook.core.linux.look import View, look_at_processes, open_source, tree_at
from hook.core.linux.look_node_paths import look_at_node_paths
from hook.core.linux.mountns import Namespace
from hook.core.linux.walk import MountMismatch, PathEscapes, Place
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND, volume_above
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan
from hook.core.verdict import Verdict


def foresee(
    done: Verdict,
    *,
    pid: int,
    rootfs: str,
    decided: Plan,
    spec: Spec,
    still_waits: Callable[[], None] = lambda: None,
) -> Verdict:
    """Add to `done` what Enforce mode would refuse or close. Arguments as for `hook.core.linux.look.look`.

    Raises nothing for what cannot be seen: config.json alone counts then.
    """
    try:
        if decided.exclusive is not None:
            if "device" not in [edit.kind for edit in decided.edits]:
                done.denials = lookdevices.look_at_devices(pid, rootfs, decided.exclusive)
            done.denials = done.denials or lookdevices.look_at_cgroups(pid, rootfs, decided.exclusive, spec, acts=False)
        if decided.refuses_sharing and not done.denials:
            done.denials = look_at_processes(pid, rootfs, decided.refuses_sharing)
        if decided.node_paths_of_reassert and not done.denials:
            seen = look_at_node_paths(pid, rootfs, decided, spec, still_waits=still_waits)
            known = [str(reason) for reason in decided.denials]
            done.denials = [reason for reason in seen.denials if str(reason) not in known]
            done.node_paths, done.read_only = seen.node_paths, seen.read_only
        if decided.mounts and not done.denials and not decided.denials:
            with Namespace(pid, rootfs) as namespace:
                view = Foreseen(
                    namespace,
                    namespace.container,
                    table=mount_table(pid, still_waits),
                    spec=spec,
                    decided=decided,
                    sources={"/": posix.stat(rootfs)} if pid else {},
                    still_waits=still_waits,
                )
                done.denials = view.reasons()
    except (ReassertError, OSError):
        return done.with_logs(decided)
    return done


class Foreseen(View):
    """A container's root and mounts, as they would be if config.json were corrected and the runtime made its mounts."""

    def __init__(
        self,
        namespace: Namespace | None,
        root: int,
        *,
        table: dict[int, Row],
        spec: Spec,
        decided: Plan,
        sources: dict[str, posix.stat_result],
        still_waits: Callable[[], None] = lambda: None,
    ) -> None:
        """`spec`: of the container as it is."""
        written = decided.applied(spec)
        super().__init__(namespace, root, table={**table}, spec=written, sources=sources, still_waits=still_waits)
        self._reserved = decided.mounts
        self._is = spec
        self._opened: dict[str, int] = {}

    def reasons(self) -> list[Reason]:
        """Why the container would not start. Raises Unacceptable, OSError."""
        try:
            for edit in self._reserved:
                self._open(edit)
            self._leave_out(self._gone())
            return [Reason(edit.rule, KIND, str(problem)) for edit, problem in self.problems(self._reserved)]
        finally:
            self.walks.close()
            for fd in self._opened.values():
                posix.close(fd)

    def _open(self, edit: PlaceMount) -> None:
        """Open the source of a reserved mount. An emptyDir is made only for a container that gets it."""
        try:
            if edit.mount:
                self._opened[edit.name] = open_source(edit, self.namespace.root if self.namespace else -1)
        except (Unacceptable, OSError) as error:
            if not edit.volume or is_shortage(error):
                raise

    def _gone(self) -> list[Row]:
        """The container's mounts that would not be made. At each place the first one of config.json is the lowest."""
        stays = {id(mount) for mount in self.spec.mounts}
        if all(id(mount) in stays for mount in self._is.mounts):
            return []
        made: dict[str, list[Mount]] = {}
        for mount in self._is.mounts:
            try:
                made.setdefault(self.walks.to(mount.path, everywhere=True).path, []).append(mount)
            except OSError as error:
                if is_shortage(error):
                    raise
        at: dict[str, list[Row]] = {}
        for row in self.inside:
            at.setdefault(self.path_of(row), []).append(row)
        pairs = [pair for path, mounts in made.items() for pair in zip(mounts, at.get(path, ()), strict=False)]
        return [row for mount, row in pairs if id(mount) not in stays]

    def _leave_out(self, gone: list[Row]) -> None:
        numbers = {row.id for row in gone}
        numbers.update(below.id for row in gone for below in descendants(row.id, row.point, self.inside))
        self.ours.update(dict.fromkeys(numbers, self._reserved[0]))
        self.inside = [row for row in self.inside if row.id not in numbers]

    def _check_mount(self, edit: PlaceMount, place: Place, reserved: Sequence[PlaceMount]) -> None:
        """Checks what the reserved mount would be on, and takes it as made."""
        made = self._made(edit, place)
        under = {(row.device, row.root) for row in self.inside if row.point == self.prefix + place.path}
        if under - {made and (made.device, made.root)} and not edit.volumes_above:
            raise MountMismatch(volume_above(place.path, edit.name))
        if made:
            self.inside.append(made)
            self.table[made.id] = made
            self.ours[made.id] = edit
            self.walks.put(place.node, self._opened[edit.name], made.id)

    def _made(self, edit: PlaceMount, place: Place) -> Row | None:
        """The row of a reserved mount; None for an emptyDir that is not made yet. Raises PathEscapes, OSError."""
        if edit.name not in self._opened:
            return None
        number, source = tree_at(self._opened[edit.name])
        holds = self.nodes_table.get(number)
        if holds is None:
            raise PathEscapes("leads through a mount that was made since")
        point, path = self.prefix + place.path, source.removeprefix(holds.point.rstrip("/"))
        return holds.bound(max(self.table) + 1, point, path, options=edit.options())
