"""For the type checker alone."""

from typing import Protocol

from hook.core.base.jsontext import Strings

Entries = list[str] | Strings
"""Env, as in OCI process.env."""

Places = list[tuple[int, str, str | None]]
"""Position, name and value (None without `=`) of entries; in `Strings`, the position of the quote before it."""


class Target(Protocol):
    """What a container would start with; `hook.core.facts.Container` describes each field."""

    @property
    def env(self) -> Entries:
        """Entries of process.env."""

    @property
    def shared_processes(self) -> str | None:
        """With whom it shares its processes, or ""; None if that is not known."""

    mounts: list[dict[str, object]]
    annotations: dict[str, str]
    devices: list[dict[str, object]]
    device_rules: list[dict[str, object]]


class Editable(Target, Protocol):
    """One that edits are made in."""

    env: Entries
