"""Parse a policy file by libyaml (PyYAML), 20 times faster than ruamel.yaml, with line and column of every value.

Only what both parsers read alike is taken: `data` returns None for all else, syntax errors and duplicate keys among it,
and the caller takes ruamel.yaml, which reads YAML 1.2 and has the messages. unit/policy/test_quick.py compares both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from yaml import YAMLError
from yaml.cyaml import CParser
from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent, StreamEndEvent

_DIFFERENT = re.compile("[\t\x85\u2028\u2029\ufeff]|^%", re.MULTILINE)
"""Line breaks of YAML 1.1 that are none in 1.2, byte order marks, directives, which may ask for YAML 1.1, and tabs."""

_NO_STRING = re.compile(r"[-+.]?[0-9]|[-+]?\.|<<$|=$|~$|(null|Null|NULL)$")
"""Where a plain scalar may be a number, a date, null, a merge key or a value key. No field of a policy takes these."""

_BOOLEANS = {word: value for value in (True, False) for word in (str(value).lower(), str(value), str(value).upper())}


class _Other(Exception):  # no error: the other parser reads it
    """The other parser has to read this file."""


class Marks:
    """Positions of the entries, as ruamel.yaml has them: line and column of a key and its value, or of an item."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: dict[Any, list[int]] = {}


class Mapping(dict[str, Any]):
    """A mapping with the positions of its entries."""

    __slots__ = ("lc",)

    def __init__(self) -> None:
        self.lc = Marks()


class Items(list[Any]):
    """A list with the positions of its items."""

    __slots__ = ("lc",)

    def __init__(self) -> None:
        self.lc = Marks()


def data(text: str, most: int) -> Any:
    """The document; None if the other parser has to read it. `most`: nodes after aliases are expanded."""
    if _DIFFERENT.search(text):
        return None
    parser = CParser(text)
    try:
        return _Composer(_events(parser), most).document()
    except (_Other, YAMLError, RecursionError, ValueError):  # ValueError: a lone surrogate
        return None
    finally:
        parser.dispose()


def _events(parser: Any) -> Iterator[Any]:
    while True:
        yield parser.get_event()


class _Composer:
    """Makes data of events. `left`: nodes that the document may still have; an alias counts as what it stands for."""

    def __init__(self, events: Iterator[Any], most: int) -> None:
        self._next = events.__next__
        self._left = most
        self._anchors: dict[str, tuple[Any, int, Any]] = {}

    def document(self) -> Any:
        """The value of the only document. Raises _Other."""
        self._next()
        if isinstance(self._next(), StreamEndEvent):
            raise _Other
        found = self._value(self._next())
        self._next()
        if not isinstance(self._next(), StreamEndEvent):
            raise _Other
        return found

    def _value(self, event: Any) -> Any:
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:  # or it stands inside of its own anchor
                raise _Other
            value, count, _ = self._anchors[event.anchor]
            self._spend(count)
            return value
        before = self._left
        self._spend(1)
        if event.tag is not None:
            raise _Other
        if isinstance(event, ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, MappingStartEvent):
            value = self._mapping()
        else:
            value = self._items()
        if event.anchor is not None:
            if event.anchor in self._anchors:
                raise _Other
            self._anchors[event.anchor] = value, before - self._left, event.start_mark
        return value

    def _spend(self, nodes: int) -> None:
        self._left -= nodes
        if self._left < 0:
            raise _Other

    def _place(self, event: Any) -> Any:
        """Where a value stands: that of an alias at its anchor, as for ruamel.yaml."""
        if isinstance(event, AliasEvent) and event.anchor in self._anchors:
            return self._anchors[event.anchor][2]
        return event.start_mark

    @staticmethod
    def _scalar(event: Any) -> Any:
        text = event.value
        if not event.implicit[0]:
            if event.style in ("|", ">"):  # their indentation and comments are read differently
                raise _Other
            return text
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _NO_STRING.match(text):
            raise _Other
        return text or None

    def _mapping(self) -> Mapping:
        found = Mapping()
        places = found.lc.data
        while not isinstance(event := self._next(), MappingEndEvent):
            if not isinstance(event, ScalarEvent) or event.anchor is not None:
                raise _Other
            key = self._value(event)
            if not isinstance(key, str) or key in places:
                raise _Other
            at = event.start_mark
            event = self._next()
            of = self._place(event)
            places[key] = [at.line, at.column, of.line, of.column]
            found[key] = self._value(event)
        return found

    def _items(self) -> Items:
        found = Items()
        places = found.lc.data
        while not isinstance(event := self._next(), SequenceEndEvent):
            at = self._place(event)
            places[len(found)] = [at.line, at.column]
            found.append(self._value(event))
        return found
