"""What the agent keeps between requests, for one policy file and one store."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from hook.agent.answers import POLICY, Fallback
from hook.agent.filecache import FileCache, is_settled
from hook.core.base.compare import parents
from hook.core.base.system import Untrusted, trusted
from hook.core.decide import Case
from hook.core.linux.look_node_paths import Known
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.core.reserve.reserved_env import Reserved
from hook.entry.caller import WRAPPER, Options
from hook.entry.write_spec import HOOK_FLAG
from hook.resident.metrics import NoMetrics

_Keys = Sequence[tuple[int, ...]]

_DECISIONS = 4096
"""The most containers whose decision and bundle are cached."""


LAST = 20
"""The last starts that are kept of each real runtime, and as many execs."""

_RUNTIMES = 32
"""The most real runtimes of which starts or execs are kept, so that a status fits into a frame."""


class WarmStarts:
    """Counts what the agent answered and what leaves no event, and keeps when the last ones were.

    That is containers that needed nothing, and execs.
    """

    def __init__(self) -> None:
        self.metrics = NoMetrics()
        self._last: dict[tuple[bool, str], deque[tuple[float, str]]] = {}  # the time, and a hook's container id

    def add(self, options: Options, case: Case, is_exec: bool) -> None:
        """Count one that was answered just now. Probes are no starts of the node's users."""
        adapter = case.adapter.name
        if HOOK_FLAG in options.flags:  # the hook completes the work of the wrapper, which alone tells it the path
            adapter = WRAPPER
        probe = case.is_probe()
        if not is_exec:
            self.metrics.unchanged(adapter, probe)
        elif not probe:
            self.metrics.executed("warm", "")
        if probe:
            return
        last = self._last.get((is_exec, options.real))
        if last is None:
            if len(self._last) >= _RUNTIMES:
                return
            last = self._last.setdefault((is_exec, options.real), deque(maxlen=LAST))
        last.append((time.time(), "" if options.real else case.container_id[:128]))

    def as_json(self) -> list[dict[str, Any]]:
        """The last starts and execs without an event, by real runtime; "" if it is not known (a hook)."""
        return [
            {
                "runtime": runtime,
                "exec": is_exec,
                "starts": [
                    {"time": round(when, 3), "start": "warm", **({"id": whose} if whose else {})}
                    for when, whose in list(last)
                ],
            }
            for (is_exec, runtime), last in list(self._last.items())
        ]


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
        self.known: Known = {}
        self.starts = WarmStarts()
        self.options: dict[tuple[str, str], Options] = {}
        self.called: set[str] = set()  # dispatchers and hook files by which requests came (hook.agent.holder)
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
