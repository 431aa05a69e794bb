"""What tests of metrics share."""

from __future__ import annotations

from hook.ops.metrics.prometheus import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample of a scrape, but those of `_created`."""
    lines = metrics.text().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in found.items() if "_created" not in name}
