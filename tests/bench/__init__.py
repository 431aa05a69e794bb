"""The time that reassert adds to a container start, beside runc alone and other wrappers (project/performance.md)."""
