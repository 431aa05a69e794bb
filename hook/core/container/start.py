"""What a container would start with, or has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Self, TypeAlias

from hook.core.base.jsontext import Strings
from hook.core.container import oci
from hook.core.container.oci import Json

Entries: TypeAlias = list[str] | Strings
"""Env, as in OCI process.env."""

Places: TypeAlias = list[tuple[int, str, str | None]]
"""Position, name and value (None without `=`) of entries; in `Strings`, the position of the quote before it."""


class Unseen:
    """What an adapter does not see of a container. It is false, as nothing is."""

    def __bool__(self) -> Literal[False]:
        return False


UNSEEN = Unseen()
"""Not None, which is a member that config.json does not have."""


class Start:
    """OCI's objects of one container, from a config.json, an NRI request, a pod's YAML or a running container.

    UNSEEN: this adapter does not see it. A kind that needs it then says "cannot tell" (`Plan.cannot_tell`).
    """

    pod_annotations: Mapping[str, str] | Unseen = UNSEEN
    """The annotations of the pod, which only NRI shows."""
    has_users = False
    """Whether it has a user namespace, as far as this adapter sees it."""
    of_systemd = False
    """Whether systemd makes the container's cgroup, as far as this adapter sees it."""

    def __init__(
        self,
        env: Entries,
        mounts: list[Json],
        *,
        annotations: dict[str, str] | None = None,
        devices: list[Json] | None = None,
        device_rules: list[Json] | None = None,
        shared_processes: str | Unseen = UNSEEN,
    ) -> None:
        self.env = env
        """The entries of process.env."""
        self.mounts = oci.mounts(mounts)
        """Views of the objects of `mounts`."""
        self.annotations = annotations or {}
        """The values, by key."""
        self.devices = oci.devices(devices or [])
        """Views of the objects of linux.devices."""
        self.device_rules = oci.device_rules(device_rules or [])
        """Views of the objects of linux.resources.devices."""
        self._shared_processes = shared_processes

    def copied(self) -> Self:
        """Another one with the same parts, of which each can be replaced."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def shared_processes(self) -> str | Unseen:
        """With whom the container shares its processes, or "". Spec reads it from config.json."""
        return self._shared_processes

    def values(self, name: str) -> list[str | None]:
        """The values of an env name, in the order of its entries; None for an entry without `=`."""
        return values_of(name, self.env)


def values_of(name: str, env: Entries) -> list[str | None]:
    """The values of an env name, in the order of its entries; None for an entry without `=`."""
    places = places_of([name], env)
    if places is not None:
        return [value for _, _, value in places]
    split = [entry.partition("=") for entry in env]
    return [value if sign else None for each, sign, value in split if each == name]


_FEW = 16
"""Names up to which looking for each of them in the whole env is faster than looking at each entry."""


def places_of(names: Collection[str], env: Entries) -> Places | None:
    """The places of the entries of these names in an env, sorted. None if its text cannot be searched for them."""
    if len(names) > _FEW:
        return None
    if isinstance(env, Strings):
        text, mark = env.text, '"'
        is_plain = all(map(str.isidentifier, names))  # else a name could begin with a separator
    else:
        text, mark = "\0".join(["", *env, ""]), "\0"
        is_plain = text.count(mark) == len(env) + 1
    if not is_plain:
        return None
    return sorted([(position, name, value) for name in names for position, value in _entries(name, text, mark)])


def _entries(name: str, text: str, mark: str) -> Iterator[tuple[int, str | None]]:
    """The entries of a name in a text of entries between marks: the position of the mark before it, and the value."""
    position = -1
    while (position := text.find(mark + name, position + 1)) >= 0:
        after = position + 1 + len(name)
        sign = text[after : after + 1]
        if sign == mark:
            yield position, None
        elif sign == "=":
            yield position, text[after + 1 : text.index(mark, after)]
