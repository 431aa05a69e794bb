"""What the tests of all tiers have in common: a node, its container bundles, and what a container's process has.

No module here imports `hook` or a package when it is imported: tests/reality runs without them.
"""
