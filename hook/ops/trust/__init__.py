"""The trust store that `reassert trust build` makes on the node, for containers to mount (docs/trust.md)."""
