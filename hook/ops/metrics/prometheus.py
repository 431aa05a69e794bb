"""The metrics of a resident process for Prometheus (`hook.ops.metrics.service` serves them)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hook import __version__
from hook.core.policy.model import Policy
from hook.resident.metrics import NoMetrics

_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.5)
"""Buckets of the histogram of decision times, in seconds. The runtime waits 2 seconds."""

_METRICS = (
    (
        "counter containers adapter outcome start cold",
        "Container starts by outcome: adjusted (edits were made or asked for), unchanged, refused, audited or failed; "
        "cold: the reason of a cold start. A container that two adapters see (NRI plugin and hook) counts for each.",
    ),
    (
        "counter probes adapter outcome",
        "Test containers of verify and install, by the same outcomes; no other metric counts them.",
    ),
    (
        "counter execs start cold",
        "Processes that the agent let start in running containers (exec), such as probes. A cold one is not "
        "counted, and a refused one counts in reassert_containers_total.",
    ),
    (
        "counter edits adapter rule kind result",
        "Differences between containers and the policy at their start; kind: env, mount, device or annotation; "
        "result: applied (made and verified), asked (the runtime was asked to make it), audited (Audit mode: not made) "
        "or refused (the container was refused).",
    ),
    (
        "counter refusals adapter rule result",
        "Reasons to refuse a container; rule is empty if no rule caused it; result: refused, or audited (Audit mode: "
        "it started).",
    ),
    (
        "counter drift rule kind",
        "Differences between running containers and the policy, counted when an audit first finds the container.",
    ),
    (
        "gauge drifted_containers",
        "Running containers that differ from the policy, as audit says every 5 minutes. No sample: not known.",
    ),
    ("gauge unseen_containers", "Running containers that the same audit could not look at."),
    (
        "counter errors kind",
        "Failures of reassert itself, by kind: decision, deadline, violation, connection, log or metrics.",
    ),
    (
        "gauge lost_events",
        "Events that the node's event log did not take since the node was booted, as on a full disk.",
    ),
    ("histogram decision_seconds", "Seconds from a request to its decision."),
    ("gauge nri_connected", "1 while a container runtime is connected."),
    ("counter nri_connections", "Connections to a container runtime."),
    ("gauge policy_info path sha256 mode", "The policy in force."),
    ("gauge policy_loaded_timestamp_seconds", "When the plugin loaded the policy in force."),
    (
        "gauge policy_held_back",
        "1 while the policy file is not in force: broken, missing or being written, or the node lacks its files.",
    ),
    ("gauge policy_compiled_timestamp_seconds", "When the policy in force was compiled; 0 if there is none."),
    ("gauge build_info version", "The version of the process."),
    (
        "gauge verify_exit_status engine",
        "Exit status of the last verify: 0 protected, 1 not, 3 nothing to verify, 4 warnings.",
    ),
    ("gauge verify_timestamp_seconds engine", "When verify last ended."),
    (
        "gauge wired engine handler",
        "1 while the running engine calls reassert for a handler, else 0. No sample: not known, or left out by name.",
    ),
    (
        "gauge findings severity engine part",
        "Errors and warnings of status, as it says each minute; engine is empty for what is about no engine.",
    ),
    ("gauge ca_certificates path", "Certificates in a file that the policy mounts."),
    ("gauge ca_expired_certificates path", "Those of them that have expired."),
    ("gauge ca_next_expiry_timestamp_seconds path", "When the next of them expires that has not expired yet."),
    (
        "gauge stale_containers path",
        "Running containers with what a mounted hostPath was before it was replaced, looked at every 5 minutes.",
    ),
    (
        "counter agent_answers answer cold",
        "Container starts and hooks that the agent was asked about, by answer: go (unchanged), changed, refused or "
        "cold, with the reason.",
    ),
    ("histogram agent_answer_seconds", "Seconds from a connection to the agent's answer."),
    ("counter agent_dropped", "Connections to the agent that were dropped: no front sent them."),
)
"""Kind, name and labels of each metric, and what it means."""

_LOOKED_AT = (
    *("drifted_containers", "unseen_containers", "lost_events"),
    *("policy_held_back", "policy_compiled_timestamp_seconds"),
)
"""Gauges without a sample until they are set: their 0 says that reassert has looked."""

_OF_PLUGIN = ("nri_connected", "nri_connections", "decision_seconds", "policy_loaded_timestamp_seconds")


class Metrics(NoMetrics):
    """Used with --metrics. `registry`: what a scrape gets. `metrics`: each by its name without `reassert_`."""

    def __init__(self) -> None:
        import prometheus_client  # 3 MB, only with --metrics

        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(self)  # registered first: its `collect` comes before that of the metrics that it sets
        self.metrics: dict[str, Any] = {}
        for spelled, text in _METRICS:
            kind, name, *labels = spelled.split()
            more = {"buckets": _BUCKETS} if kind == "histogram" else {}
            made = getattr(prometheus_client, kind.capitalize())
            self.metrics[name] = made(f"reassert_{name}", text, labels, registry=self.registry, **more)
        self.metrics["build_info"].labels(__version__).set(1)
        self.lock = threading.Lock()
        self.refresh: Callable[[], None] = lambda: None
        self._last: tuple[object, ...] = ()
        self.forget()

    def without_plugin(self) -> None:
        """Leave out what only the NRI plugin sets: a missing plugin must not look like one without a connection."""
        for name in _OF_PLUGIN:
            self.registry.unregister(self.metrics[name])

    def count(self, metric: str, *labels: str) -> None:
        """See NoMetrics."""
        counter = self.metrics[metric]
        (counter.labels(*labels) if labels else counter).inc()

    def observe(self, metric: str, seconds: float) -> None:
        """See NoMetrics."""
        self.metrics[metric].observe(seconds)

    def set(self, metric: str, value: float) -> None:
        """See NoMetrics."""
        self.metrics[metric].set(value)
        vars(self.metrics[metric]).pop("collect", None)

    def forget(self, names: Iterable[str] = _LOOKED_AT) -> None:
        """Leave out gauges of what could not be looked at, until they are set again."""
        for name in names:
            self.metrics[name].collect = list  # no samples
        self._last = ()

    def set_all(self, metric: str, values: Mapping[Any, float]) -> None:
        """Set a gauge with labels, by the values of its labels: one value, or a tuple. Others are forgotten."""
        self.metrics[metric].clear()
        for label, value in values.items():
            self.metrics[metric].labels(*(label if isinstance(label, tuple) else (label,))).set(value)

    def policy(self, policy: Policy, loaded_at: float) -> None:
        """See NoMetrics."""
        now = (policy.path, policy.fingerprint, policy.mode, loaded_at, policy.warning, policy.missing)
        if now == self._last:
            return
        self._last = now
        self.metrics["policy_info"].clear()
        self.metrics["policy_info"].labels(policy.path, policy.fingerprint, policy.mode).set(1)
        self.set("policy_loaded_timestamp_seconds", loaded_at)
        self.set("policy_held_back", bool(policy.warning or policy.missing))

    def authorities(self, files: Mapping[str, list[float]], now: float) -> None:
        """Set when the certificates of CA bundles expire, by path."""
        known = {path: expiries for path, expiries in files.items() if expiries}
        valid = {path: [when for when in expiries if when > now] for path, expiries in known.items()}
        self.set_all("ca_certificates", {path: len(known[path]) for path in known})
        self.set_all("ca_expired_certificates", {path: len(known[path]) - len(valid[path]) for path in known})
        expiry = {path: min(valid[path], default=max(known[path])) for path in known}
        self.set_all("ca_next_expiry_timestamp_seconds", expiry)

    def describe(self) -> list[Any]:
        """No metric of its own (prometheus_client.registry.Collector)."""
        return []

    def collect(self) -> list[Any]:
        """Refresh the metrics that are read of the node, for a scrape (prometheus_client.registry.Collector)."""
        with self.lock:
            self.refresh()
        return []

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, with what `refresh` sets."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry))
