"""installed.json: which files of this node reassert wrote, and what was there before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hook.node.change.files import Change, State
from hook.node.change.journal import DIRECTORY
from hook.node.errors import NodeError

PROGRAM = "program"
"""The owner of files that belong to no engine: the program, its link, the policy."""


@dataclass
class OwnedFile:
    """A file that reassert wrote. `before`: its state without reassert. `after`: hex sha256 of what was written."""

    before: State | None
    after: str


@dataclass
class OwnerRecord:
    """The files of one owner, an engine or PROGRAM, on this node.

    `adapters`, `runtime_class`: of the install. `references`: the files that the engine reads, in the order of writing.
    `directories`: made for the files, outermost first. `units`: systemd units that run for it. `notes`: the engine's
    own data, JSON. `since`: the time of its first install, in seconds since the epoch; 0 if it is not known.
    """

    adapters: list[str] = field(default_factory=list)
    runtime_class: str | None = None
    files: dict[str, OwnedFile] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    since: int = 0


class Record:
    """The content of installed.json. `path`: of the file. `parts`: owner records by owner."""

    def __init__(self, path: str, parts: dict[str, OwnerRecord]) -> None:
        self.path = path
        self.parts = parts

    @classmethod
    def read(cls, directory: str = DIRECTORY) -> Self:
        """Returns this node's record, empty if there is no file. Raises NodeError if the file cannot be read."""
        path = f"{directory}/installed.json"
        try:
            data = json.loads(Path(path).read_bytes())
            return cls(path, {owner: _part(part) for owner, part in data["parts"].items()})
        except FileNotFoundError:
            return cls(path, {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NodeError(
                f"{path} cannot be read ({error}); repair it, or restore the engines' files from {directory}/before"
            ) from None

    def engines(self) -> list[str]:
        """The engines that are wired."""
        return sorted(owner for owner, part in self.parts.items() if owner != PROGRAM and part.adapters)

    def engines_with_files(self) -> list[str]:
        """The engines that are wired, or that still have files of reassert."""
        return sorted(owner for owner, part in self.parts.items() if owner != PROGRAM and (part.files or part.adapters))

    def owned(self, path: str) -> OwnedFile | None:
        """Returns the entry of a path, of any owner."""
        return next((part.files[path] for part in self.parts.values() if path in part.files), None)

    def elsewhere(self, path: str, owner: str, wired: bool = True) -> bool:
        """Whether another owner has the path too. `wired`: ask the owners that are wired, else the others."""
        others = [part for name, part in self.parts.items() if name != owner and bool(part.adapters) == wired]
        return any(path in part.files for part in others)

    def change(self) -> Change:
        """Returns the change that writes this record, or removes the file if no owner has anything left."""
        parts = {owner: part for owner, part in self.parts.items() if part.files or part.adapters}
        if not parts:
            return self.path, None
        data = {"parts": {owner: _part_json(part) for owner, part in sorted(parts.items())}}
        return self.path, State(json.dumps(data, indent=1).encode(), mode=0o600)


def _part(data: dict[str, Any]) -> OwnerRecord:
    files = {
        path: OwnedFile(f["before"] and State.from_json(f["before"]), f["after"]) for path, f in data["files"].items()
    }
    lists = data["references"], data["directories"], data["units"]
    return OwnerRecord(data["adapters"], data["runtimeClass"], files, *lists, data["notes"], data.get("since", 0))


def _part_json(part: OwnerRecord) -> dict[str, Any]:
    files = {
        path: {"before": owned.before and owned.before.as_json(), "after": owned.after}
        for path, owned in part.files.items()
    }
    data = {**vars(part), "runtimeClass": part.runtime_class, "files": files}
    del data["runtime_class"]
    return data
