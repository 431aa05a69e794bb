"""Which of containerd's configuration files to change, and how. Pure but for reading the files.

containerd 1.x: an imported file that has the CRI plugin's table replaces it whole, so the file that has the last
word is edited in place. 2.x merges deeply: a drop-in of our own, with the main file's `version` (others are not
applied), and the main file's `imports` names it where it does not yet. Source: containerd's
cmd/containerd/server/config.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from typing import Any

from hook.node.change.files import Change, State
from hook.node.engines import toml
from hook.node.engines.base import Base
from hook.node.engines.toml import Key
from hook.node.errors import NodeError

CRI = {2: ("plugins", "io.containerd.grpc.v1.cri"), 3: ("plugins", "io.containerd.cri.v1.runtime")}
"""The table of the CRI plugin's runtimes by the version of a configuration file."""

NRI: Key = ("plugins", "io.containerd.nri.v1.nri")

_DROP_IN = "99-reassert.toml"
_OUR_IMPORT = "99-reassert*.toml"
"""A pattern: where a plain name stands in `imports` and the file is gone, containerd does not start."""


class Files:
    """The configuration files as they are without reassert.

    `main`: path of config.toml, which may be missing. `major`: containerd's major version. `imports`: the effective
    patterns, as containerd itself has them. Of a symbolic link, the file that it leads to is read and changed.
    """

    def __init__(self, main: str, major: int, imports: list[str], base: Base) -> None:
        """Raises NodeError for a file that cannot be understood, or an old format."""
        self.main = main
        self.major = major
        self._base = base
        self._text = self._read(main)
        values = toml.parse(self._text, main)
        others = [path for path in imports if not os.path.basename(path).startswith("99-reassert")]
        self._imports = [str(item) for item in values.get("imports", others)]
        self._has_imports = "imports" in values
        self.version = int(values.get("version", 0 if self._text.strip() else min(major, 2) + 1))
        if major == 1 and not self._text.strip():
            self.version = 2
        if self.version not in CRI or (major == 1 and self.version == 3):
            raise NodeError(
                f"{main}: configuration version {self.version or 1} is not supported with containerd {major}.x; "
                "write `version = 2`"
                + (", or let `containerd config migrate` do it" if major > 1 else " and the plugins' full names")
            )

    def cri(self) -> Key:
        """The table of the CRI plugin in the file that is edited."""
        return CRI[self.version]

    def change(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        """The files that make these settings effective, and what `strip` needs to take them out again."""
        return self._drop_in(settings) if self.major > 1 else self._in_place(settings)

    def _in_place(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        path = os.path.realpath(self._last_word())
        text = self._read(path)
        if not text.strip():
            text = "version = 2\n"
        values = toml.parse(text, path)
        notes = [
            {"path": path, "key": list(key), "ours": ours, "was": toml.get(values, key)}
            for key, ours in settings.items()
        ]
        return [(path, self._state(path, toml.edit(text, path, settings)))], notes

    def define(self, key: Key) -> bool:
        """Whether any file has this table below the CRI plugin's."""
        return any(toml.get(values, (*self.cri(), *key)) is not None for _, values in self._all())

    def _last_word(self) -> str:
        """The file whose CRI table counts."""
        with_table = [path for path, values in self._all() if toml.get(values, self.cri()) is not None]
        return with_table[-1] if with_table else self.main

    def _all(self) -> list[tuple[str, dict[str, Any]]]:
        """Every file with its values, the main one first, in the order in which they are read."""
        paths = [self.main]
        for pattern in self._imports:
            paths += [path for path in sorted(glob.glob(self._absolute(pattern))) if path not in paths]
        return [(path, toml.parse(self._read(path), path)) for path in paths]

    def _drop_in(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        directory = os.path.dirname(self.main)
        path = f"{directory}/conf.d/{_DROP_IN}"
        for pattern in map(self._absolute, self._imports):
            if os.path.basename(pattern) == "*.toml" and "*" not in os.path.dirname(pattern):
                path = f"{os.path.dirname(pattern)}/{_DROP_IN}"
        text = "# written by reassert (`reassert node`); do not edit\n" + f"version = {self.version}\n"
        changes: list[Change] = [(path, State(toml.edit(text, path, settings).encode()))]
        if any(fnmatch.fnmatchcase(path, self._absolute(pattern)) for pattern in self._imports):
            return changes, []
        ours = f"{os.path.dirname(path)}/{_OUR_IMPORT}"
        main = self._text or f"version = {self.version}\n"
        edited = toml.edit(main, self.main, {("imports",): [*self._imports, ours]})
        real = os.path.realpath(self.main)
        changes.append((real, self._state(real, edited)))
        return changes, [{"path": real, "key": ["imports"], "ours": ours, "was": self._has_imports}]

    def _state(self, path: str, text: str) -> State:
        """The file with another text, and the owner and mode that it has."""
        base = self._base(path)
        content = toml.encode(text)
        return base.with_content(content) if base else State(content)

    def _read(self, path: str) -> str:
        state = self._base(os.path.realpath(path))
        return toml.decode(state.content) if state else ""

    def _absolute(self, pattern: str) -> str:
        """As containerd resolves it: from the main file's directory."""
        return os.path.normpath(os.path.join(os.path.dirname(self.main), pattern))


def strip(path: str, text: str, notes: list[dict[str, Any]]) -> str:
    """A file that an administrator edited after us, without our settings; theirs stay. Raises NodeError."""
    values = toml.parse(text, path)
    settings: dict[Key, Any] = {}
    for note in notes:
        key = tuple(note["key"])
        if note["path"] != path:
            continue
        now = toml.get(values, key)
        if key == ("imports",) and isinstance(now, list):
            left = [item for item in now if item != note["ours"]]
            settings[key] = left if left or note["was"] else None
        elif now == note["ours"]:
            settings[key] = note["was"]
    return toml.edit(text, path, settings)
