"""The container engines: how each one is wired, what it reads, and what stands in it."""
