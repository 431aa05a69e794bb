"""Metrics of all adapters of a node, as the resident process serves them (docs/metrics.md)."""
