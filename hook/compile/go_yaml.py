"""YAML as Go's sigs.k8s.io/yaml reads it, by which kubectl reads pods, and CDI's own library specs, `.json` files too.

Scalars are those of YAML 1.1: `yes` is true, `010` is eight. A key that stands twice is an error. Of a CDI spec the
first document counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hook.core.container import cdi

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DIRECTIVE = re.compile(r"\A%YAML 1\.1[ \t]*$", re.MULTILINE)
_TAG = "tag:yaml.org,2002:"

NODES = 1_000_000
"""The most nodes of a document with each alias written out. Go's library has a limit too (decode.go, `unmarshal`)."""


def first_document(text: str) -> Any:
    """The data of the first document, None without one. Raises as `documents`."""
    return next(documents(text), None)


def documents(text: str) -> Iterator[Any]:
    """The data of each document. Raises YAMLError, ValueError, TypeError, RecursionError."""
    from ruamel.yaml import YAML

    text = _DIRECTIVE.sub("", text)  # the only version that Go takes; ruamel.yaml reads no document by it here
    constructor, parser = YAML(pure=True).get_constructor_parser(text)
    try:
        composer = constructor.composer
        while composer.check_node():
            yield _Reader(constructor.resolver).value(composer.get_node())
    finally:
        parser.dispose()


class _Reader:
    """Makes data of ruamel.yaml's nodes. An alias gives the same object, so that nested aliases take no memory."""

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver
        self._made: dict[int, tuple[Any, int]] = {}  # with the number of nodes
        self._nodes = 0

    def value(self, node: Any) -> Any:
        if id(node) not in self._made:
            outside, self._nodes = self._nodes, 1
            data = self._new(node)
            self._made[id(node)] = data, self._nodes
            self._nodes = outside
        data, nodes = self._made[id(node)]
        self._nodes += nodes
        if self._nodes > NODES:
            raise ValueError(f"its aliases make more than {NODES} nodes of it")
        return data

    def _new(self, node: Any) -> Any:
        if isinstance(node.value, str):
            return self._scalar(node)
        if not node.value or not isinstance(node.value[0], tuple):
            return {} if str(node.tag) == f"{_TAG}map" else [self.value(each) for each in node.value]
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, content in node.value:
            if key.value == "<<" and not key.style:
                several = isinstance(content.value, list) and str(content.tag) == f"{_TAG}seq"
                for each in content.value if several else [content]:
                    merged = {**self.value(each), **merged}
                continue
            name = as_text(self.value(key))
            if name in own:
                raise ValueError(f"duplicate key {name}")
            own[name] = self.value(content)
        return {**merged, **own}

    def _scalar(self, node: Any) -> Any:
        text: str = node.value
        if node.style:  # quoted, or a block
            return text
        is_tagged = str(node.tag) != str(self._resolver.resolve(type(node), text, (True, False)))
        return text if is_tagged and str(node.tag) == f"{_TAG}str" else _plain(text)


def _plain(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    digits = text.replace("_", "")
    match = _INTEGER.fullmatch(digits)
    if match:
        sign, *parts = match.groups()
        number = next(int(part, base) for part, base in zip(parts, (16, 2, 8, 10), strict=True) if part)
        return -number if sign == "-" else number
    return float(digits) if _FLOAT.fullmatch(digits) else text


def as_text(value: object) -> str:
    """A key, as JSON has it."""
    if isinstance(value, (bool, int, float)):
        return str(cdi.text_of(value))
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError("a key is neither text nor a number")
