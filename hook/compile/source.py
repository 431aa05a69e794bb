"""Parse a policy file, YAML 1.2 or JSON, into data with line and column of every value."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.base.text import printable
from hook.core.policy.model import ENFORCE

Path = Sequence[str | int]
"""Keys and indices from the document's root, as jsonschema gives them."""

_NODES = 1_000_000
"""Maximum number of YAML nodes after aliases are expanded; nested aliases could otherwise use up the node's memory."""


@dataclass(frozen=True)
class Problem:
    """An error or warning about a policy file. `line` and `column` count from 1."""

    line: int
    column: int
    message: str
    severity: str = "error"

    def at(self, path: str) -> str:
        """`FILE:LINE:COLUMN: SEVERITY: MESSAGE`, as compilers print it. Text of the file is escaped."""
        return printable(f"{path}:{self.line}:{self.column}: {self.severity}: {self.message}")


class PolicyInvalid(ReassertError):
    """A policy file has errors."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        """Its errors and warnings."""
        super().__init__("; ".join(p.at(path) for p in problems if p.severity == "error"))


@dataclass(frozen=True)
class Source:
    """A parsed policy file."""

    path: str
    sha256: str
    data: Any
    """Dicts and lists with positions, as ruamel.yaml has them."""
    text: str

    def place(self, path: Path, key: bool = False) -> tuple[int, int]:
        """Line and column of the value at `path`, or of its key. If it is missing, those of the nearest ancestor.

        An empty value (`mode:`) has the position of its key.
        """
        node, line, column = self.data, 0, 0
        for depth, step in enumerate(path):
            marks = getattr(node, "lc", None)
            entry = (marks.data or {}).get(step) if marks is not None else None
            if entry is None:
                break
            last = depth == len(path) - 1
            line, column = entry[:2] if len(entry) == 2 or (last and (key or node[step] is None)) else entry[2:]
            node = node[step]
        return line + 1, column + 1

    def written(self, path: Path) -> str:
        """A number, boolean or date as the file has it: `1.10`, while its value is 1.1. "" if it has a YAML tag."""
        line, column = self.place(path)
        scalar = re.match(r"[\w.+:-]+( +[\w.+:-]+)*", self.text.splitlines()[line - 1][column - 1 :])
        return scalar[0] if scalar else ""

    def spec(self) -> dict[str, Any]:
        """The value of `spec`; {} if it is missing or no mapping."""
        spec = self.data.get("spec") if isinstance(self.data, dict) else None
        return spec if isinstance(spec, dict) else {}

    def rules(self) -> list[Any]:
        """The value of `spec.rules`; [] if it is missing or no list."""
        rules = self.spec().get("rules")
        return rules if isinstance(rules, list) else []

    def mode(self) -> str:
        """The value of `spec.mode`, or its default."""
        return str(self.spec().get("mode", ENFORCE))

    def kubelet_root(self) -> object:
        """The value of `spec.kubelet.root`, None if it is missing."""
        kubelet = self.spec().get("kubelet")
        return kubelet.get("root") if isinstance(kubelet, dict) else None

    def origin(self, path: Path) -> Path:
        """The path in the file of an entry of a compiled rule; that of `trust` if the rule does not list the entry.

        Any other path is returned as it is.
        """
        if len(path) < 5 or not isinstance(path[4], int):
            return path
        rules, number, field, index = path[1:5]
        own = self.data["spec"][rules][number].get(field) or []
        return path if index < len(own) else (*path[:3], "trust")  # type: ignore[operator]  # mypy narrows no Sequence

    def problem(self, path: Path, message: str, *, key: bool = False, severity: str = "error") -> Problem:
        """A problem with the value at `path`, or with its key."""
        return Problem(*self.place(path, key), message, severity)


def parse(path: str, content: bytes) -> Source:
    """Parse a policy file. Raises PolicyInvalid with the position of a syntax error."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise PolicyInvalid(path, [Problem(line, column, "not UTF-8: save the file as UTF-8")]) from None
    return Source(path, hashlib.sha256(content).hexdigest(), _loaded(path, text), text)


def _loaded(path: str, text: str) -> Any:
    """The document by ruamel.yaml. Raises PolicyInvalid."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    yaml = YAML(typ="rt", pure=True)
    yaml.allow_duplicate_keys = False
    try:
        data = yaml.load(_tabs_of_json(text))
    except DuplicateKeyError as error:
        message = "duplicate key " + str(error.problem or "").removeprefix("found duplicate key ")
        raise PolicyInvalid(path, [_problem_at(error, message.split(" with value")[0])]) from None
    except MarkedYAMLError as error:
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise PolicyInvalid(path, [_problem_at(error, f"not YAML: {message}")]) from None
    except ReaderError as error:
        line, column = text.count("\n", 0, error.position) + 1, error.position - text.rfind("\n", 0, error.position)
        message = (
            f"character U+{error.character:04X} is not allowed" if isinstance(error.character, int) else error.reason
        )
        raise PolicyInvalid(path, [Problem(line, column, message)]) from None
    except (YAMLError, RecursionError, ValueError, IndexError) as error:  # ruamel.yaml fails at the scalar -_
        raise PolicyInvalid(path, [Problem(1, 1, f"not YAML: {error}")]) from None
    if data is None:
        raise PolicyInvalid(path, [Problem(1, 1, "the file is empty; apiVersion, kind and spec are needed")])
    try:
        nodes = _count(data, 0)
    except RecursionError:  # an alias inside its own anchor
        nodes = _NODES + 1
    if nodes > _NODES:
        raise PolicyInvalid(path, [Problem(1, 1, f"expands to more than {_NODES} YAML nodes")])
    return data


def _problem_at(error: Any, message: str) -> Problem:
    """A problem at the place of ruamel.yaml's MarkedYAMLError."""
    mark = error.problem_mark or error.context_mark
    return Problem(mark.line + 1, mark.column + 1, message) if mark else Problem(1, 1, message)


def _tabs_of_json(text: str) -> str:
    """JSON with a space for each tab: YAML does not allow tabs. Columns stay the same."""
    if "\t" in text:
        try:
            json.loads(text)
        except ValueError:
            return text
        return text.replace("\t", " ")
    return text


def _count(node: Any, so_far: int) -> int:
    so_far += 1
    if so_far <= _NODES:
        children: Any = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for child in children:
            so_far = _count(child, so_far)
            if so_far > _NODES:
                break
    return so_far
