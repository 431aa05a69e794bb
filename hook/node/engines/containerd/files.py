"""Which of containerd's configuration files are changed, and how. The only I/O is reading the files.

containerd 1.x: an imported file that has the CRI plugin's table replaces the whole table. So the last file with that
table is edited in place. 2.x merges files deeply. So a drop-in of our own is written, with the `version` of the main
file: 2.0 to 2.2 do not apply files of another version, 2.3.0 to 2.3.4 do not start with a drop-in of a higher one. The
main file's `imports` gets an entry for the drop-in if it does not cover it yet. Source: containerd's
cmd/containerd/server/config.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from hook.node.change.files import Change, State
from hook.node.engines import toml
from hook.node.engines.base import Base
from hook.node.engines.toml import Key
from hook.node.errors import NodeError


class Format(NamedTuple):
    """A version of config.toml. `cri`: the key of the CRI plugin's table.

    `template`, `drop_ins`: the file and the directory of that version in k3s and RKE2.
    """

    cri: Key
    template: str
    drop_ins: str


_3 = Format(("plugins", "io.containerd.cri.v1.runtime"), "config-v3.toml.tmpl", "config-v3.toml.d")

FORMATS = {
    4: _3,  # containerd 2.3: what moved from version 3 are the sockets' tables, which reassert does not set
    3: _3,
    2: Format(("plugins", "io.containerd.grpc.v1.cri"), "config.toml.tmpl", "config.toml.d"),
}
"""The supported versions of config.toml, the newest first."""

NRI: Key = ("plugins", "io.containerd.nri.v1.nri")

_DROP_IN = "99-reassert.toml"
_OUR_IMPORT = "99-reassert*.toml"
"""A pattern, since containerd does not start if `imports` names a single file that is missing."""


class Parsed(NamedTuple):
    """The text of a file and its values."""

    text: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Files:
    """The configuration files as they are without reassert.

    `main`: path of config.toml, which may be missing. `newest`: the newest format that this containerd reads.
    `version`: of the main file's format. `imports`: the patterns of other files. `has_imports`: whether the main file
    sets them. `files`: text and values of each, the main one first, in the order of reading. A symbolic link is
    followed: its target is read and changed.
    """

    main: str
    newest: int
    version: int
    imports: list[str]
    has_imports: bool
    files: dict[str, Parsed]
    base: Base

    @classmethod
    def read(cls, main: str, newest: int, imports: list[str], base: Base) -> Self:
        """Reads every file once. `imports`: the effective patterns if the main file sets none.

        Raises NodeError for a file that cannot be parsed or has an unsupported format.
        """
        parsed = _parsed(main, base)
        patterns = [str(item) for item in parsed.values.get("imports", imports)]
        version = _version(main, newest, parsed)
        files = {main: parsed}
        for pattern in patterns:
            for path in sorted(glob.glob(_absolute(main, pattern))):
                if path not in files:
                    files[path] = _parsed(path, base)
        return cls(main, newest, version, patterns, "imports" in parsed.values, files, base)

    def cri(self) -> Key:
        """Returns the key of the CRI plugin's table in the file that is edited."""
        return FORMATS[self.version].cri

    def change(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns the changes that make these settings effective, and the notes with which `strip` removes them."""
        return self._drop_in(settings) if self.newest > 2 else self._in_place(settings)

    def _in_place(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        last = self._last_word()
        path = os.path.realpath(last)
        text, values = self.files[last].text, self.files[last].values
        if not text.strip():
            text, values = "version = 2\n", {"version": 2}
        notes = [
            {"path": path, "key": list(key), "ours": ours, "was": toml.get(values, key)}
            for key, ours in settings.items()
        ]
        return [(path, self._state(path, toml.edit(text, path, settings)))], notes

    def define(self, key: Key) -> bool:
        """Whether any file defines this table below the CRI plugin's."""
        return any(toml.get(parsed.values, (*self.cri(), *key)) is not None for parsed in self.files.values())

    def _last_word(self) -> str:
        """Returns the file whose CRI table is effective."""
        with_table = [path for path, parsed in self.files.items() if toml.get(parsed.values, self.cri()) is not None]
        return with_table[-1] if with_table else self.main

    def _drop_in(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        path = f"{self.drop_ins()}/{_DROP_IN}"
        text = "# written by reassert (`reassert node`); do not edit\n" + f"version = {self.version}\n"
        more, notes = self.have_imported(path)
        return [(path, State(toml.edit(text, path, settings).encode())), *more], notes

    def drop_ins(self) -> str:
        """Returns the directory for our drop-in: one that `imports` names as a whole, the last, or conf.d."""
        for pattern in (_absolute(self.main, each) for each in reversed(self.imports)):
            if os.path.basename(pattern) == "*.toml" and "*" not in os.path.dirname(pattern):
                return os.path.dirname(pattern)
        return f"{os.path.dirname(self.main)}/conf.d"

    def is_imported(self, path: str) -> bool:
        """Whether `imports` covers a path."""
        return any(fnmatch.fnmatchcase(path, _absolute(self.main, pattern)) for pattern in self.imports)

    def have_imported(self, path: str) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns the changes that make containerd import a drop-in, none if it does, and notes for `strip`."""
        if self.is_imported(path):
            return [], []
        ours = f"{os.path.dirname(path)}/{_OUR_IMPORT}"
        main = self.files[self.main].text or f"version = {self.version}\n"
        edited = toml.edit(main, self.main, {("imports",): [*self.imports, ours]})
        real = os.path.realpath(self.main)
        return [(real, self._state(real, edited))], [
            {"path": real, "key": ["imports"], "ours": ours, "was": self.has_imports}
        ]

    def _state(self, path: str, text: str) -> State:
        """Returns the file's state with another text, and with the owner and mode that it has."""
        base = self.base(path)
        content = toml.encode(text)
        return base.with_content(content) if base else State(content)


def _parsed(path: str, base: Base) -> Parsed:
    state = base(os.path.realpath(path))
    text = toml.decode(state.content) if state else ""
    return Parsed(text, toml.parse(text, path))


def _version(main: str, newest: int, parsed: Parsed) -> int:
    """Returns the version of the main file's format. Raises NodeError if it is not supported with this containerd."""
    best = next((each for each in FORMATS if each <= newest), 2)
    version = int(parsed.values.get("version", 1)) if parsed.text.strip() else best
    if version not in FORMATS or version > newest:
        raise NodeError(
            f"{main}: configuration version {version} is not supported with this containerd; write `version = {best}` "
            "with that version's names of the plugins"
            + (", or let `containerd config migrate` do it" if 2 < newest == best else "")
        )
    return version


def _absolute(main: str, pattern: str) -> str:
    """Returns a pattern as containerd resolves it: from the main file's directory."""
    return os.path.normpath(os.path.join(os.path.dirname(main), pattern))


def strip(path: str, text: str, notes: list[dict[str, Any]]) -> str:
    """Returns a file that was edited after the install, without our settings. Raises NodeError."""
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
