"""The program behind the command `reassert`: puts the env and mounts that a node reserves back before a container starts."""

__version__ = "0.2.0"
