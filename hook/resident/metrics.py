"""What a resident process counts. Nothing is counted without --metrics; with it, cli hands over hook.ops.metrics."""

from __future__ import annotations

from hook.core.policy.model import Policy

NRI = "nri"
"""The adapter that counts by calls. The others are counted by their events (hook.ops.metrics.log)."""

APPLIED, ASKED, AUDITED, REFUSED = "applied", "asked", "audited", "refused"
"""What became of an edit: made and verified; asked of the runtime; not made in Audit mode; not made since the container
was refused. Of a reason to refuse: REFUSED, or AUDITED."""


class NoMetrics:
    """Used without --metrics: counts nothing and does not import prometheus_client."""

    def count(self, metric: str, *labels: str) -> None:
        """Add one to a counter."""

    def observe(self, metric: str, seconds: float) -> None:
        """Add an observation to a histogram."""

    def set(self, metric: str, value: float) -> None:
        """Set a gauge without labels."""

    def container(self, outcome: str, seconds: float) -> None:
        """Count a container that a runtime asked about. `outcome`: adjusted, unchanged, refused, audited or failed."""
        self.count("containers", NRI, outcome, "", "")
        self.observe("decision_seconds", seconds)

    def started(self, adapter: str, outcome: str, start: str, cold: str) -> None:
        """Count a container of another adapter, by its event. `start`: warm or cold; `cold`: why."""
        self.count("containers", adapter, outcome, start, cold)

    def probe(self, outcome: str, adapter: str = NRI) -> None:
        """Count a container that `verify` or `install` started; no other metric counts it."""
        self.count("probes", adapter, outcome)

    def unchanged(self, adapter: str, probe: bool) -> None:
        """Count a warm start of another adapter that needed nothing, and so has no event."""
        if probe:
            self.probe("unchanged", adapter)
        else:
            self.started(adapter, "unchanged", "warm", "")

    def executed(self, start: str, cold: str) -> None:
        """Count an exec. `start`: warm or cold; `cold`: why."""
        self.count("execs", start, cold)

    def edit(self, rule: str, kind: str, result: str, adapter: str = NRI) -> None:
        """Count an edit. `result`: APPLIED, ASKED, AUDITED or REFUSED."""
        self.count("edits", adapter, rule, kind, result)

    def refusal(self, rule: str, result: str, adapter: str = NRI) -> None:
        """Count a reason to refuse a container: REFUSED or AUDITED. `rule`: "" if no rule caused it."""
        self.count("refusals", adapter, rule, result)

    def drift(self, rule: str, kind: str) -> None:
        """Count a difference between a running container and what a rule wants."""
        self.count("drift", rule, kind)

    def error(self, kind: str) -> None:
        """Count a failure of reassert itself. `kind`: decision, deadline, violation, connection, log or metrics."""
        self.count("errors", kind)

    def connected(self, yes: bool) -> None:
        """Set whether a runtime is connected; counts the connection if it is."""
        self.set("nri_connected", yes)
        if yes:
            self.count("nri_connections")

    def policy(self, policy: Policy, loaded_at: float) -> None:
        """Set which policy is in force. `loaded_at`: when the plugin loaded it."""

    def answer(self, answer: str, cold: str, seconds: float) -> None:
        """Count a request that the agent answered. `answer`: go, changed, refused or cold; `cold`: why."""
        self.count("agent_answers", answer, cold)
        self.observe("agent_answer_seconds", seconds)

    def dropped(self) -> None:
        """Count a connection that the agent dropped."""
        self.count("agent_dropped")
