"""The container about to start: who it is, what its OCI spec says, what the node knows about it."""
