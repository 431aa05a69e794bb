"""Reads the event log: `reassert events` and `reassert report`."""
