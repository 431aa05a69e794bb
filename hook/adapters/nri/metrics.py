"""The plugin's metrics for Prometheus (`hook.adapters.nri.scrape` serves them)."""

from __future__ import annotations

from typing import Any

from hook.policy.model import Policy

_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.5)
"""Buckets of the histogram of decision times, in seconds. The runtime waits 2 seconds."""


class NoMetrics:
    """Used without --metrics: counts nothing and does not import prometheus_client."""

    def container(self, outcome: str, seconds: float) -> None:
        """Count a container that a runtime asked about. `outcome`: adjusted, unchanged, refused, audited or failed."""

    def probe(self, outcome: str) -> None:
        """Count a container that `node verify` or `node install` started; no other metric counts it."""

    def edit(self, rule: str, kind: str) -> None:
        """Count an edit that the runtime was asked for or that Audit mode logged."""

    def refusal(self, rule: str) -> None:
        """Count a reason to refuse a container, in Audit mode too. `rule`: "" if no rule caused it."""

    def drift(self, rule: str, kind: str) -> None:
        """Count a difference between a running container and what a rule wants."""

    def drifted(self, containers: int) -> None:
        """Set how many running containers differed from the policy when they were last compared."""

    def error(self, kind: str) -> None:
        """Count a failure of reassert itself. `kind`: decision, deadline, violation, connection or log."""

    def connected(self, yes: bool) -> None:
        """Set whether a runtime is connected; counts the connection if it is."""

    def policy(self, policy: Policy, loaded_at: float) -> None:
        """Set which policy is in force. `loaded_at`: when the plugin loaded it."""

    def answer(self, answer: str, cold: str, seconds: float) -> None:
        """Count a request that the agent answered. `answer`: go, changed, refused or cold; `cold`: why."""

    def dropped(self) -> None:
        """Count a connection that the agent dropped."""


class Metrics(NoMetrics):
    """Used with --metrics. `text` is the reply to a scrape."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # 3 MB, only with --metrics

        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"reassert_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(f"reassert_{name}", text, labels, registry=registry)

        self._containers = counter(
            "containers",
            "Containers that a runtime asked about, by outcome: adjusted (the runtime was asked for edits), "
            "unchanged, refused, audited or failed.",
            "outcome",
        )
        self._probes = counter(
            "probes",
            "Containers that node verify or node install started, by the same outcomes; no other metric counts them.",
            "outcome",
        )
        self._edits = counter(
            "edits",
            "Edits that the runtime was asked for or, in Audit mode, that were logged; kind: env, mount, device or "
            "annotation.",
            "rule",
            "kind",
        )
        self._refusals = counter(
            "refusals",
            "Reasons to refuse a container, in Audit mode too; rule is empty where no rule caused it.",
            "rule",
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
            "errors", "Failures of reassert itself, by kind: decision, deadline, violation, connection or log.", "kind"
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

    def container(self, outcome: str, seconds: float) -> None:
        """See NoMetrics."""
        self._containers.labels(outcome).inc()
        self._seconds.observe(seconds)

    def probe(self, outcome: str) -> None:
        """See NoMetrics."""
        self._probes.labels(outcome).inc()

    def edit(self, rule: str, kind: str) -> None:
        """See NoMetrics."""
        self._edits.labels(rule, kind).inc()

    def refusal(self, rule: str) -> None:
        """See NoMetrics."""
        self._refusals.labels(rule).inc()

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

    def text(self) -> tuple[str, bytes]:
        """Content type and body in Prometheus' text format."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return CONTENT_TYPE_LATEST, generate_latest(self._registry)
