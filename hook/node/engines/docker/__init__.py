"""dockerd: daemon.json, and its API."""
