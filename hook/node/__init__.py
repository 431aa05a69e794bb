"""Wiring reassert into the engines of this node: detect, change, check, roll back (docs/node.md)."""
