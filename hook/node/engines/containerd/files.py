"""Which of containerd's configuration files are changed, and how.

containerd 1.x: an imported file that has the CRI plugin's table replaces the whole table. So the last file with that
table is edited in place. 2.x merges files deeply. So a drop-in of our own is written, with the `version` of the main
file: 2.0 to 2.2 do not apply files of another version, 2.3.0 to 2.3.4 do not start with a drop-in of a higher one. The
main file's `imports` gets an entry for the drop-in if it does not cover it yet. Source: containerd's
cmd/containerd/server/config.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from os.path import basename, dirname, join, normpath
from typing import Any, NamedTuple, Self

from hook.node.change.files import Change, State
from hook.node.engines import toml
from hook.node.engines.base import Base
from hook.node.engines.toml import Key
from hook.node.errors import NodeError
from hook.node.nodefiles import NodeFiles


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
    `version`: of the main file's format. `imports`: the main file's patterns of other files. `has_imports`: whether the
    main file sets them. `files`: text and values of each, the main one first, in the order of reading: the imports of
    imported files come after all that the main file imports. A symbolic link is followed: its target is read and
    changed. `node`: where imports are looked for.
    """

    main: str
    newest: int
    version: int
    imports: list[str]
    has_imports: bool
    files: dict[str, Parsed]
    base: Base
    node: NodeFiles

    @classmethod
    def read(cls, main: str, newest: int, imports: list[str], base: Base, node: NodeFiles) -> Self:
        """Reads every file once, by `base`. `imports`: the effective patterns if the main file sets none.

        Raises NodeError for a file that cannot be parsed or has an unsupported format.
        """
        parsed = _parsed(main, base, node)
        patterns = [str(item) for item in parsed.values.get("imports", imports)]
        version = _version(main, newest, parsed)
        files = {main: parsed}
        pending = [_absolute(main, pattern) for pattern in patterns]
        while pending:
            for path in node.matching(pending.pop(0)):
                if path not in files:
                    files[path] = _parsed(path, base, node)
                    pending += _imports_of(path, files[path])
        return cls(main, newest, version, patterns, "imports" in parsed.values, files, base, node)

    def patterns(self) -> list[str]:
        """Returns the absolute patterns of imports, of all files, in the order of reading."""
        others = [(path, parsed) for path, parsed in self.files.items() if path != self.main]
        nested = [pattern for path, parsed in others for pattern in _imports_of(path, parsed)]
        return [_absolute(self.main, pattern) for pattern in self.imports] + nested

    def cri(self) -> Key:
        """Returns the key of the CRI plugin's table in the file that is edited."""
        return FORMATS[self.version].cri

    def change(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns the changes that make these settings effective, and the notes with which `strip` removes them."""
        return self._drop_in(settings) if self.newest > 2 else self._in_place(settings)

    def _in_place(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        last = self._last_word()
        path = self.node.target(last)
        text, values = self.files[last].text, self.files[last].values
        if not text.strip():
            text, values = "version = 2\n", {"version": 2}
        notes = [
            {"path": path, "key": list(key), "ours": ours, "was": toml.get(values, key)}
            for key, ours in settings.items()
        ]
        return [(path, self._state(path, toml.edit(text, path, settings, self.node.content(path))))], notes

    def define(self, key: Key) -> bool:
        """Whether any file defines this table below the CRI plugin's."""
        return any(toml.get(parsed.values, (*self.cri(), *key)) is not None for parsed in self.files.values())

    def _last_word(self) -> str:
        """Returns the file whose CRI table is effective."""
        with_table = [path for path, parsed in self.files.items() if toml.get(parsed.values, self.cri()) is not None]
        return with_table[-1] if with_table else self.main

    def _drop_in(self, settings: dict[Key, Any]) -> tuple[list[Change], list[dict[str, Any]]]:
        path = f"{self.drop_ins()}/{_DROP_IN}"
        self._check_later(path, settings)
        text = "# written by reassert (`reassert install`); do not edit\n" + f"version = {self.version}\n"
        more, notes = self.have_imported(path)
        return [(path, State(toml.edit(text, path, settings, self.node.content(path)).encode())), *more], notes

    def drop_ins(self) -> str:
        """Returns the directory for our drop-in: one that `imports` names as a whole, the last, or conf.d."""
        for pattern in reversed(self.patterns()):
            if basename(pattern) == "*.toml" and "*" not in dirname(pattern):
                return dirname(pattern)
        return f"{dirname(self.main)}/conf.d"

    def is_imported(self, path: str) -> bool:
        """Whether `imports` covers a path."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.patterns())

    def _check_later(self, ours: str, settings: dict[Key, Any]) -> None:
        """Raises NodeError if a file that containerd reads after our drop-in sets one of our keys otherwise."""
        for path in self._later(ours):
            values = self.files[path].values
            for key, value in settings.items():
                said = next((got for cri in _TABLES if (got := toml.get(values, (*cri, *key[2:]))) is not None), None)
                if key[:2] in _TABLES and said not in (None, value):
                    told = f"{path} is read after {ours} and sets {'.'.join(key[2:])}"
                    raise NodeError(f"{told}; name it so that it sorts before, or have {self.main} import it")

    def _later(self, ours: str) -> list[str]:
        """Returns the files that are read after our drop-in, also if the drop-in is not there yet."""
        if ours in self.files:
            paths = list(self.files)
            return paths[paths.index(ours) + 1 :]
        by = next((n for n, pattern in enumerate(self.patterns()) if fnmatch.fnmatchcase(ours, pattern)), None)
        own = len(self.imports) if by is None else by  # without a pattern, it becomes the main file's last import
        found: list[str] = []
        for path in self.files:
            at = next((n for n, pattern in enumerate(self.patterns()) if fnmatch.fnmatchcase(path, pattern)), -1)
            if path != self.main and (at > own or (at == own and (by is None or path > ours))):
                found.append(path)
        return found

    def have_imported(self, path: str) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns the changes that make containerd import a drop-in, none if it does, and notes for `strip`."""
        if self.is_imported(path):
            return [], []
        ours = f"{dirname(path)}/{_OUR_IMPORT}"
        main = self.files[self.main].text or f"version = {self.version}\n"
        edited = toml.edit(main, self.main, {("imports",): [*self.imports, ours]}, self.node.content(self.main))
        real = self.node.target(self.main)
        return [(real, self._state(real, edited))], [
            {"path": real, "key": ["imports"], "ours": ours, "was": self.has_imports}
        ]

    def _state(self, path: str, text: str) -> State:
        """Returns the file's state with another text, and with the owner and mode that it has."""
        base = self.base(path)
        content = toml.encode(text)
        return base.with_content(content) if base else State(content)


_TABLES = [each.cri for each in FORMATS.values()]


def _imports_of(path: str, parsed: Parsed) -> list[str]:
    """Returns the patterns of a file as containerd resolves them: from the directory of the file itself."""
    return [_absolute(path, str(each)) for each in parsed.values.get("imports") or []]


def _parsed(path: str, base: Base, node: NodeFiles) -> Parsed:
    state = base(node.target(path))
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
    """Returns a pattern as containerd resolves it: from the directory of the file that has it."""
    return normpath(join(dirname(main), pattern))


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
    return toml.edit(text, path, settings, toml.encode(text))
