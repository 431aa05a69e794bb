"""The metrics of a resident process for Prometheus (`hook.ops.metrics.service` serves them)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from hook import __version__
from hook.core.metrics import NRI, NoMetrics
from hook.core.policy.model import Policy

_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.5)
"""Buckets of the histogram of decision times, in seconds. The runtime waits 2 seconds."""


class Metrics(NoMetrics):
    """Used with --metrics. `registry`: what a scrape gets."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # 3 MB, only with --metrics

        self.registry = registry = CollectorRegistry()
        registry.register(self)  # the first: its `collect` comes before those of what it sets

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"reassert_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(f"reassert_{name}", text, labels, registry=registry)

        self._containers = counter(
            "containers",
            "Container starts by adapter and outcome: adjusted (edits were made or asked for), unchanged, refused, "
            "audited or failed; start is warm or cold, and cold the reason. A container that two adapters see, such as "
            "the NRI plugin and the hook behind it, counts for each.",
            "adapter",
            "outcome",
            "start",
            "cold",
        )
        self._probes = counter(
            "probes",
            "Containers that node verify or node install started, by the same outcomes; no other metric counts them.",
            "adapter",
            "outcome",
        )
        self._execs = counter(
            "execs",
            "Processes that the agent let start in running containers (exec), such as probes. A cold one is not "
            "counted, and a refused one counts in reassert_containers_total.",
            "start",
            "cold",
        )
        self._edits = counter(
            "edits",
            "Differences between containers and the policy, when they started; kind: env, mount, device or annotation; "
            "result: applied (made and verified), asked (the runtime was asked to make it), audited (Audit mode of the "
            "policy or the rule: not made) or refused (not made, the container was refused).",
            "adapter",
            "rule",
            "kind",
            "result",
        )
        self._refusals = counter(
            "refusals",
            "Reasons to refuse a container; rule is empty where no rule caused it; result: refused, or audited (Audit "
            "mode of the policy or the rule: it started).",
            "adapter",
            "rule",
            "result",
        )
        self._drift = counter(
            "drift",
            "Differences between running containers and the policy, counted each time they are compared.",
            "rule",
            "kind",
        )
        self._drifted = gauge(
            "drifted_containers", "Running containers that differ from the policy, when they were last compared."
        )
        self._errors = counter(
            "errors",
            "Failures of reassert itself, by kind: decision, deadline, violation, connection, log or metrics.",
            "kind",
        )
        self._seconds = Histogram(
            "reassert_decision_seconds", "Seconds from a request to its decision.", buckets=_BUCKETS, registry=registry
        )
        self._connected = gauge("nri_connected", "1 while a container runtime is connected.")
        self._connections = counter("nri_connections", "Connections to a container runtime.")
        self._policy = gauge("policy_info", "The policy in force.", "path", "sha256", "mode")
        self._loaded = gauge("policy_loaded_timestamp_seconds", "When the plugin loaded the policy in force.")
        self._held = gauge(
            "policy_held_back", "1 while the policy file is not in force, because it is broken or missing."
        )
        self._last: tuple[object, ...] = ()
        self._compiled = gauge(
            "policy_compiled_timestamp_seconds", "When the policy in force was compiled; 0 if there is none."
        )
        self._build = gauge("build_info", "The version of the process.", "version")
        self._build.labels(__version__).set(1)
        self._verify = gauge(
            "verify_exit_status",
            "Exit status of the last node verify: 0 protected, 1 not, 3 nothing to verify.",
            "engine",
        )
        self._verify_time = gauge("verify_timestamp_seconds", "When node verify last ended.", "engine")
        self._authorities = gauge("ca_certificates", "Certificates in a file that the policy mounts.", "path")
        self._expired = gauge("ca_expired_certificates", "Those of them that have expired.", "path")
        self._expiry = gauge(
            "ca_next_expiry_timestamp_seconds", "When the next of them expires that has not expired yet.", "path"
        )
        self._stale = gauge(
            "stale_containers",
            "Running containers with what a mounted hostPath was before it was replaced, looked at every 5 minutes.",
            "path",
        )
        self.lock = threading.Lock()
        self.refresh: Callable[[], None] = lambda: None
        self._answers = counter(
            "agent_answers",
            "Container starts and hooks that the agent was asked about, by answer: go (unchanged), changed, refused or "
            "cold; the label cold has the reason.",
            "answer",
            "cold",
        )
        self._answer_seconds = Histogram(
            "reassert_agent_answer_seconds",
            "Seconds from a connection to the agent's answer.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._dropped = counter("agent_dropped", "Connections to the agent that were dropped: no front sent them.")

    def without_plugin(self) -> None:
        """Leave out what only the NRI plugin sets: a plugin that is not there is not one without a connection."""
        for metric in (self._connected, self._connections, self._seconds, self._loaded):
            self.registry.unregister(metric)

    def container(self, outcome: str, seconds: float) -> None:
        """See NoMetrics."""
        self._containers.labels(NRI, outcome, "", "").inc()
        self._seconds.observe(seconds)

    def started(self, adapter: str, outcome: str, start: str, cold: str) -> None:
        """See NoMetrics."""
        self._containers.labels(adapter, outcome, start, cold).inc()

    def executed(self, start: str, cold: str) -> None:
        """See NoMetrics."""
        self._execs.labels(start, cold).inc()

    def probe(self, outcome: str, adapter: str = NRI) -> None:
        """See NoMetrics."""
        self._probes.labels(adapter, outcome).inc()

    def edit(self, rule: str, kind: str, result: str, adapter: str = NRI) -> None:
        """See NoMetrics."""
        self._edits.labels(adapter, rule, kind, result).inc()

    def refusal(self, rule: str, result: str, adapter: str = NRI) -> None:
        """See NoMetrics."""
        self._refusals.labels(adapter, rule, result).inc()

    def drift(self, rule: str, kind: str) -> None:
        """See NoMetrics."""
        self._drift.labels(rule, kind).inc()

    def drifted(self, containers: int) -> None:
        """See NoMetrics."""
        self._drifted.set(containers)

    def error(self, kind: str) -> None:
        """See NoMetrics."""
        self._errors.labels(kind).inc()

    def connected(self, yes: bool) -> None:
        """See NoMetrics."""
        self._connected.set(yes)
        if yes:
            self._connections.inc()

    def policy(self, policy: Policy, loaded_at: float) -> None:
        """See NoMetrics."""
        now = (policy.path, policy.fingerprint, policy.mode, loaded_at, policy.warning, policy.missing)
        if now == self._last:
            return
        self._last = now
        self._policy.clear()
        self._policy.labels(policy.path, policy.fingerprint, policy.mode).set(1)
        self._loaded.set(loaded_at)
        self._held.set(bool(policy.warning or policy.missing))

    def answer(self, answer: str, cold: str, seconds: float) -> None:
        """See NoMetrics."""
        self._answers.labels(answer, cold).inc()
        self._answer_seconds.observe(seconds)

    def dropped(self) -> None:
        """See NoMetrics."""
        self._dropped.inc()

    def compiled(self, when: float) -> None:
        """Set when the policy in force was compiled."""
        self._compiled.set(when)

    def verified(self, results: Mapping[str, tuple[int, int]]) -> None:
        """Set time and exit status of the last `node verify`, by engine."""
        for engine, (when, status) in results.items():
            self._verify.labels(engine).set(status)
            self._verify_time.labels(engine).set(when)

    def authorities(self, files: Mapping[str, list[float]], now: float) -> None:
        """Set when the certificates of CA bundles expire, by path."""
        for gauge in (self._authorities, self._expired, self._expiry):
            gauge.clear()
        for path, expiries in files.items():
            if expiries:
                valid = [when for when in expiries if when > now]
                self._authorities.labels(path).set(len(expiries))
                self._expired.labels(path).set(len(expiries) - len(valid))
                self._expiry.labels(path).set(min(valid, default=max(expiries)))

    def stale(self, containers: Mapping[str, int]) -> None:
        """Set how many containers have an old file of a hostPath, by hostPath."""
        self._stale.clear()
        for path, count in containers.items():
            self._stale.labels(path).set(count)

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
