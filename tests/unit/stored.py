"""A policy file and its store, for tests of what is in force."""

from __future__ import annotations

from pathlib import Path

from hook.compile.in_force import refresh
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.core.policy.store import store_path


class Node:
    """A policy file and a store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "etc" / "policy.yaml"
        self.store = directory / "store"
        self.source.parent.mkdir()

    def start(self) -> Policy:
        """What a start gets: it compiles a change in a child process."""
        return store.load(str(self.source), str(self.store))

    def load(self) -> Policy:
        """The same, where a change is compiled in this process, which takes a tenth of the time."""
        problem, key = store.source_key(str(self.source))
        stored = store.read_store(str(self.source), str(self.store))
        if not problem and (stored is None or not stored.has_compiled(key)):
            refresh(str(self.source), str(self.store))
        return self.start()

    def write(self, text: str) -> None:
        """An administrator's edit, as editors make it."""
        new = self.source.with_name("new")
        new.write_text(text)
        new.rename(self.source)

    def stored(self) -> Path:
        """The store's file."""
        return Path(store_path(str(self.source), str(self.store)))
