"""The container that a decision is about: its identity, its OCI spec, and its device allocation."""
