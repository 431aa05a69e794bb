"""The order in which the files of `live` become those of a new generation, while containers read them.

Each file is replaced by rename, so a reader gets one whole file of one generation. First new files are added, then
files are replaced, then old ones are removed. So a CA of both generations is found at every moment: in a bundle, and in
a hashed directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile

_SLOT = re.compile(r"(.*(?:^|/)[0-9a-f]{8})\.([0-9]+)")


@dataclass
class Moves:
    """What to write and remove, each in this order: `added`, `replaced`, `removed`."""

    added: list[tuple[str, bytes]] = field(default_factory=list)
    replaced: list[tuple[str, bytes]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def written(self) -> list[tuple[str, bytes]]:
        """All that is written."""
        return self.added + self.replaced


def moves(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Moves:
    """How a directory's files become others. Both: content by path."""
    found = Moves()
    for group in sorted(_groups((*old, *new))):
        _move_group(group, old, new, found)
    for path in sorted(new):
        if _SLOT.fullmatch(path):
            continue
        if path not in old:
            found.added.append((path, new[path]))
        elif old[path] != new[path]:
            found.replaced.append((path, new[path]))
    found.removed += sorted(path for path in old if path not in new and path not in found.removed)
    return found


def _groups(paths: Iterable[str]) -> set[str]:
    return {match[1] for path in paths if (match := _SLOT.fullmatch(path))}


def _move_group(group: str, old: Mapping[str, bytes], new: Mapping[str, bytes], found: Moves) -> None:
    """The files HASH.0, HASH.1 and so on of one hash.

    A reader tries them in order, until a file is missing. So that it finds each certificate of both generations at any
    moment, the new ones are first added behind the old ones. Then they are written from the beginning. A certificate
    that this overwrites stands earlier already, or behind. Then the end is cut off, last file first.
    """
    before, after = _slots(group, old), _slots(group, new)
    if before == after:
        return
    if after[: len(before)] == before:
        found.added += [(f"{group}.{number}", after[number]) for number in range(len(before), len(after))]
        return
    if after:
        found.added += [(f"{group}.{len(before) + number}", content) for number, content in enumerate(after)]
        found.replaced += [(f"{group}.{number}", content) for number, content in enumerate(after)]
    end = len(before) + len(after)
    found.removed += [f"{group}.{number}" for number in range(end - 1, len(after) - 1, -1)]


def _slots(group: str, files: Mapping[str, bytes]) -> list[bytes]:
    return [files[path] for path in takewhile(files.__contains__, (f"{group}.{number}" for number in count()))]
