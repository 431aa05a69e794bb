"""What the agent keeps between requests, for one policy file and one store."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from hook.agent.answers import POLICY, Fallback
from hook.agent.filecache import FileCache, is_settled
from hook.agent.starts import WarmStarts
from hook.core.base.compare import parents
from hook.core.base.system import Untrusted, trusted
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.core.reserve import Reserved
from hook.entry.caller import Options

_Keys = Sequence[tuple[int, ...]]

_DECISIONS = 4096
"""The most containers whose decision and bundle are cached."""


class Memory:
    """The agent's memory between requests, for one policy file and one store."""

    def __init__(self, source: str, directory: str, event_log: str) -> None:
        self.source = source
        self.directory = directory
        self.events = event_log
        self.stores: FileCache[store.Stored] = FileCache(1)
        self.checkpoints: FileCache[bytes] = FileCache(2)
        self.bundles: FileCache[str] = FileCache(_DECISIONS)
        self.decisions: FileCache[Reserved | None] = FileCache(_DECISIONS)
        self.answers: dict[tuple[str, str], dict[str, str]] = {}  # answers to hook.core.facts.cri, by method and id
        self.starts = WarmStarts()
        self.options: dict[tuple[str, str], Options] = {}
        self.own_trees = {os.stat(tree).st_dev for tree in ("/proc", "/dev")}  # a path there differs between processes
        self._policy: tuple[object, Policy] | None = None
        self._last: tuple[object, Policy] | None = None
        self.compiled = store.store_path(source, directory)
        self._files = list(dict.fromkeys((source, self.compiled)))
        self._directories = list(dict.fromkeys(way for file in self._files for way in ["/", *parents(file)]))

    def policy(self) -> Policy:
        """Returns the policy in force. Raises Fallback if it must be compiled first."""
        found = self._as_found()
        last = self._last
        if last is not None and last[0] == found:
            return last[1]
        policy, problem = self._looked_up()
        if not problem and lasts(*found) and found == self._as_found():
            self._last = (found, policy)
        return policy

    def _as_found(self) -> tuple[_Keys, _Keys]:
        """Returns what makes the two files trusted: the keys of their directories, and their own. Empty on an error."""
        try:
            return (
                [status[:6] for status in map(os.lstat, self._directories)],  # from st_mode to st_gid
                [(*status[:7], status.st_mtime_ns, status.st_ctime_ns) for status in map(os.lstat, self._files)],
            )
        except OSError:
            return [], []

    def _looked_up(self) -> tuple[Policy, str]:
        """Returns the policy in force, and why the policy file cannot be used, or "". Raises Fallback."""
        problem, key = store.source_key(self.source)
        try:
            trusted(self.compiled)
        except (Untrusted, OSError):
            raise Fallback(POLICY) from None
        stored = self.stores.get(self.compiled, self._read)
        if not problem and not stored.has_compiled(key):
            raise Fallback(POLICY)
        state = (stored, problem, tuple(key))
        last = self._policy
        if last is not None and last[0] == state:
            return last[1], problem
        policy = stored.policy(self.source, key, problem)
        self._policy = (state, policy)
        return policy, problem

    def _read(self) -> store.Stored:
        """Reads the store. Raises Fallback, so that a failure is not kept."""
        stored = store.read_store(self.source, self.directory)
        if stored is None:
            raise Fallback(POLICY)
        return stored


def lasts(directories: _Keys, files: _Keys) -> bool:
    """Whether any later change is seen in the keys: there is no link, and no file that has just changed."""
    if not files or not all(stat.S_ISDIR(key[0]) for key in directories):
        return False
    return all(stat.S_ISREG(key[0]) and is_settled(max(key[-2:])) for key in files)
