"""The event log for people: `reassert events` and `reassert report`."""
