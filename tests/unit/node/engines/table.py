"""A node that is a table of texts, for the tests of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from hook.node import systemd
from hook.node.change.files import State
from hook.node.nodefiles import NodeFiles


class Table(NodeFiles):
    """`programs`: paths of executables, each of which answers. `texts`: other files by path. There are no links."""

    def __init__(self, programs: Iterable[str] = (), texts: Mapping[str, str] | None = None) -> None:
        self.programs = {*programs}
        self.texts = {**dict.fromkeys(self.programs, ""), **(texts or {})}

    def which(self, program: str) -> str | None:
        names = [program] if program.startswith("/") else [f"{each}/{program}" for each in systemd.PATH.split(":")]
        return next((name for name in names if name in self.programs), None)

    def is_file(self, path: str) -> bool:
        return path in self.texts

    def is_program(self, path: str) -> bool:
        return path in self.programs

    def is_free(self, path: str) -> bool:
        return path not in self.texts

    def answers(self, program: str) -> bool:
        return program in self.programs

    def is_gvisor(self, program: str) -> bool:
        return program.endswith("/runsc")

    def content(self, path: str, limit: int = -1) -> bytes | None:
        text = self.texts.get(path)
        return None if text is None else text.encode()[: limit if limit >= 0 else None]

    def state(self, path: str) -> State | None:
        content = self.content(path)
        return None if content is None else State(content, mode=0o755 if path in self.programs else 0o644)

    def matching(self, pattern: str) -> list[str]:
        words = pattern.split("/")
        split = [path.split("/") for path in self.texts]
        found = [each for each in split if len(each) == len(words) and all(map(fnmatchcase, each, words))]
        return sorted("/".join(each) for each in found)

    def target(self, path: str) -> str:
        return path
