"""What the agent keeps between requests, for one policy file and one store."""

from __future__ import annotations

import os
import stat
import time

from hook.adapters.caller import Options
from hook.adapters.nri.metrics import NoMetrics
from hook.agent.cold import POLICY, GoCold
from hook.agent.kept import SETTLED_NS, Kept
from hook.base.compare import parents
from hook.base.system import Untrusted, trusted
from hook.policy import store
from hook.policy.model import Policy
from hook.reserve.env import Reserved

_DECISIONS = 4096
"""The most containers whose decision and bundle are cached."""


class Memory:
    """The agent's memory between requests, for one policy file and one store."""

    def __init__(self, source: str, directory: str, event_log: str) -> None:
        self.source = source
        self.directory = directory
        self.events = event_log
        self.stores: Kept[store.Stored | None] = Kept(1)
        self.checkpoints: Kept[bytes] = Kept(2)
        self.bundles: Kept[str] = Kept(_DECISIONS)
        self.decisions: Kept[Reserved | None] = Kept(_DECISIONS)
        self.metrics = NoMetrics()
        self.options: dict[tuple[str, str], Options] = {}
        self._policy: tuple[object, Policy] | None = None
        self._last: tuple[object, Policy] | None = None
        files = (source, store.store_path(source, directory))
        self._ways = list(dict.fromkeys(way for file in files for way in ["/", *reversed(parents(file)), file]))

    def policy(self) -> Policy:
        """Returns the policy in force. Raises GoCold if it must be compiled first."""
        found = self._as_found()
        last = self._last
        if last is not None and last[0] == found:
            return last[1]
        policy, problem = self._looked_up()
        if found and not problem and found == self._as_found():
            self._last = (found, policy)
        return policy

    def _as_found(self) -> list[tuple[int, ...]]:
        """Returns what makes the two files trusted, and their keys. Empty: with a link, or if one has just changed."""
        found: list[tuple[int, ...]] = []
        for way in self._ways:
            try:
                status = os.lstat(way)
            except OSError:
                return []
            found.append((status.st_mode, status.st_uid, status.st_gid, status.st_dev, status.st_ino))
            if not stat.S_ISDIR(status.st_mode):
                found.append((status.st_size, status.st_mtime_ns, status.st_ctime_ns))
                is_settled = time.time_ns() - max(found[-1][1:]) > SETTLED_NS
                if not stat.S_ISREG(status.st_mode) or not is_settled:
                    return []
        return found

    def _looked_up(self) -> tuple[Policy, str]:
        """Returns the policy in force, and why the policy file cannot be used, or "". Raises GoCold."""
        problem, key = store.source_key(self.source)
        path = store.store_path(self.source, self.directory)
        try:
            trusted(path)
        except (Untrusted, OSError):
            raise GoCold(POLICY) from None
        stored = self.stores.get(path, lambda: store.read_store(self.source, self.directory))
        if stored is None or (not problem and not stored.has_compiled(key)):
            raise GoCold(POLICY)
        state = (stored, problem, tuple(key))
        last = self._policy
        if last is not None and last[0] == state:
            return last[1], problem
        policy = stored.policy(self.source, key, problem)
        self._policy = (state, policy)
        return policy, problem
