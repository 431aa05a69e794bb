"""What a scrape reads of the node at that moment: the policy in force, its CA bundles, the last `verify`."""

from __future__ import annotations

import binascii
import calendar
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from hook.agent.filecache import FileCache
from hook.compile.stored import header_of
from hook.core.base.errors import ReassertError
from hook.core.base.isotime import seconds_of
from hook.core.base.logfile import LOST
from hook.core.base.system import read_file
from hook.core.policy import store
from hook.core.policy import trust_layout as layout
from hook.core.policy.model import Policy
from hook.core.policy.store import NoPolicy
from hook.node import kept
from hook.node.kept import DRIFTED, UNKNOWN
from hook.ops.audit.stale import Stale, stale
from hook.ops.metrics.prometheus import Metrics
from hook.ops.trust.der import parts, value

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----\s(.*?)-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL)

_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def expiries(bundle: bytes) -> list[float]:
    """Seconds since the epoch at which each certificate expires. Files without a certificate are left out."""
    found = []
    for match in _PEM.finditer(bundle):
        try:
            found.append(_not_after(binascii.a2b_base64(match[1])))
        except (ValueError, IndexError):
            continue
    return found


def _not_after(data: bytes) -> float:
    """tbsCertificate, validity, notAfter (RFC 5280, 4.1). Raises ValueError, IndexError."""
    signed = parts(parts(data)[0])
    validity = signed[4 if signed[0][0] == _VERSION else 3]  # after serialNumber, signature, issuer
    last = parts(validity)[1]
    kind, start, end = value(last)
    text = last[start:end].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("it has no time of validity")
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


_LARGEST = 16 << 20
_BUNDLES = 64
"""How many files are looked at for certificates."""

_EVERY = 300.0
"""How often the mounts of running containers are looked at: it takes a millisecond for each container."""


class _Stored(NamedTuple):
    """The compiled policy: as it is stored, when it was compiled, what it is, and the files that it mounts."""

    stored: store.Stored | None
    compiled: float
    policy: Policy | None
    bundles: list[str]


class NodeState:
    """Sets the gauges. `has_plugin`: the NRI plugin in this process says which policy it uses."""

    def __init__(
        self,
        metrics: Metrics,
        source: str,
        directory: str,
        has_plugin: bool,
        look: Callable[[Policy], list[Stale]] = stale,
    ) -> None:
        """`look`: finds the containers with an old file of a hostPath."""
        self._look = look
        self._metrics = metrics
        self._source = source
        self._directory = directory
        self._has_plugin = has_plugin
        self._stored: FileCache[_Stored] = FileCache(1)
        self._bundles: FileCache[list[float]] = FileCache(_BUNDLES)
        self._look_at = 0.0

    def refresh(self) -> None:
        """Read the node. A scrape compiles nothing: an edit counts once a start has compiled it."""
        problem, key = store.source_key(self._source)
        known = self._stored.get(store.store_path(self._source, self._directory), self._read)
        if not self._has_plugin:
            missing = NoPolicy(self._source, problem or "it was never compiled")
            policy = known.stored.policy(self._source, key, problem) if known.stored else missing
            self._metrics.policy(policy, known.compiled)
        self._metrics.set("policy_compiled_timestamp_seconds", known.compiled)
        node = kept.read(self._directory)
        verified = node.verified.items()
        self._metrics.set_all("verify_exit_status", {engine: result.status for engine, result in verified})
        self._metrics.set_all("verify_timestamp_seconds", {engine: result.when for engine, result in verified})
        self._metrics.set("lost_events", os.stat(LOST).st_size if os.path.lexists(LOST) else 0)
        self._metrics.set_all("wired", node.wiring.samples())
        found = node.findings if kept.age(node.wiring.when) <= kept.WIRING_SECONDS else []
        self._metrics.set_all("findings", Counter((each.severity, each.engine, each.part) for each in found))
        if node.audited.is_current():
            self._metrics.set("drifted_containers", node.audited.count(DRIFTED))
            self._metrics.set("unseen_containers", node.audited.count(UNKNOWN))
        else:
            self._metrics.forget(("drifted_containers", "unseen_containers"))
        self._metrics.authorities({path: self._expiries(path) for path in known.bundles}, time.time())
        if known.policy and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _EVERY
            stale: dict[str, int] = {}
            with suppress(OSError, ReassertError):
                stale = Counter(found.source for found in self._look(known.policy))
            self._metrics.set_all("stale_containers", stale)

    def _read(self) -> _Stored:
        stored = store.read_store(self._source, self._directory)
        header = header_of(self._source, self._directory)
        policy = stored.policy(self._source, [], "") if stored else None
        return _Stored(stored, seconds_of(header.get("compiledAt")), policy, bundle_files(policy) if policy else [])

    def _expiries(self, path: str) -> list[float]:
        with suppress(OSError, ReassertError):
            return self._bundles.get(path, lambda: expiries(read_file(path, _LARGEST)))
        return []


def bundle_files(policy: Policy) -> list[str]:
    """The files that the policy mounts; those that hold certificates are CA bundles.

    Of a directory, the bundle of a trust store or of Debian; other files are not searched.
    """
    rules = policy.candidates(None)
    sources = [mount.source for rule in rules for mount in rule.mounts if mount.source]
    found = [f"{source}/{layout.BUNDLE}" if os.path.isdir(source) else source for source in sources]
    return list(dict.fromkeys(found))[:_BUNDLES]
