"""The policy in force, for a long-running process: a stat(2) per look, a compile in the background after a change.

Such a process looks several times a second, so an edit is compiled before a container start needs it.
"""

from __future__ import annotations

import os
import threading
import time
from copy import copy
from functools import lru_cache

from hook.core.base.errors import describe
from hook.core.policy import store
from hook.core.policy.model import HELD_BACK, Policy
from hook.core.policy.store import NoPolicy
from hook.resident import oplog

POLICY_PATIENCE = 1.0
"""Seconds for which a container waits until a changed policy is compiled. Then the previous policy applies to it."""

NAMESPACES = 64
"""Namespaces whose rules are remembered: those of the latest containers."""

_TOLD: dict[str, tuple[str, str, str]] = {}
"""What the operation log has of each source: the agent and its NRI plugin look at the same one."""

RETRY = 5.0
"""Seconds after which a policy that could not be loaded is loaded again, though its source is unchanged."""


class Resident:
    """The last good policy of one source."""

    def __init__(self, source: str, directory: str) -> None:
        self.source = source
        self.store = directory
        """The directory of the store."""
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._refreshing = False
        self._state: object = None
        self._retry_at = 0.0
        self.last: Policy = NoPolicy(source, "it has not been read yet")
        """The policy of the last load, without a new look at the source."""
        self.loaded_at = 0.0
        """When this policy was loaded."""

    def get(self, patience: float = POLICY_PATIENCE) -> Policy:
        """The policy in force. If the source changed, waits up to `patience` seconds for the new policy."""
        if self._state != self._look() or (self._retry_at and time.monotonic() > self._retry_at):
            with self._lock:
                if not self._refreshing:
                    self._refreshing = True
                    self._ready.clear()
                    try:
                        threading.Thread(target=self._refresh, name="policy", daemon=True).start()
                    except RuntimeError:  # no more threads; the next container tries again
                        self._refreshing = False
                        self._ready.set()
            self._ready.wait(patience)
        return self.last

    def _look(self) -> object:
        """A key that changes with the source. `store.load` checks owner and permissions after a change."""
        try:
            return store.file_key(os.stat(self.source))
        except OSError as error:
            return describe(error)

    def _refresh(self) -> None:
        try:
            while True:
                state = self._look()
                policy = store.load(self.source, self.store)
                if policy.missing and self.loaded_at and not self.last.missing:  # the store is missing or unreadable
                    problem, policy = policy.missing, copy(self.last)
                    policy.warning = f"{HELD_BACK}: {problem}"
                self._retry_at = time.monotonic() + RETRY if policy.missing or policy.warning else 0.0
                if "candidates" not in vars(policy):  # a copy of the last file has another key too
                    policy.candidates = lru_cache(NAMESPACES)(policy.candidates)  # type: ignore[method-assign]  # the same, cached
                if policy.fingerprint != self.last.fingerprint or not self.loaded_at:
                    self.loaded_at = time.time()
                self.last, self._state = policy, state
                _tell(policy)
                if state == self._look():
                    return
        finally:
            with self._lock:
                self._refreshing = False
                self._ready.set()


def _tell(policy: Policy) -> None:
    """Says in the operation log which policy is in force, or why the policy file is not."""
    state = policy.fingerprint, policy.warning, policy.missing
    before = _TOLD.get(policy.path)
    if state == before:
        return
    _TOLD[policy.path] = state
    known = {"policy": policy.path, "sha256": policy.fingerprint or None, "before": before and before[0]}
    if policy.missing:
        oplog.error("policy.missing", **known, error=policy.missing)
    elif policy.warning:
        oplog.warning("policy.held", **known, error=policy.warning)
    else:
        oplog.info("policy.in-force", **known, mode=policy.mode, rules=len(policy.candidates(None)))
