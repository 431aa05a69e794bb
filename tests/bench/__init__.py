"""What a container start pays for reassert, measured beside plain runc and other wrappers. See docs/performance.md."""
